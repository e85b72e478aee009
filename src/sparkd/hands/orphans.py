"""Ending a container of sparkd's whose agent is gone, with all that its engine would leave behind."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sparkd.hands import segments

if TYPE_CHECKING:
    from sparkd.hands.container import Containers
    from sparkd.host import Host
    from sparkd.host.docker_facts import ContainerFacts

GRACE_SECONDS = 1
"""A head ends itself in 0.3 to 0.6 s. A worker takes 12 s, and has nobody to work for: the others have ended."""


def end(host: Host, containers: Containers, orphan: ContainerFacts) -> None:
    """SIGTERM, grace, SIGKILL, removed. Raises LaunchError where docker fails at it."""
    left = segments.mapped_below(host, orphan.pid) if orphan.running and orphan.pid > 1 else ()
    if orphan.running:
        containers.stop(orphan.id, GRACE_SECONDS)
    containers.remove(orphan.id)
    for segment in left:
        segments.unlink(segment, host)
