"""Removes what a rank leaves: the container whose agent is gone, its segments, and its record."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from sparkd.agent.actions.segments import find_own_segments, unlink_segment
from sparkd.agent.preflight.fixes import UnlinkSegment
from sparkd.base.lib.errors import LaunchError
from sparkd.base.state.rank_record import RANK_FILE, left_segments, read_rank

if TYPE_CHECKING:
    from sparkd.agent.actions.dockerd import Containers
    from sparkd.base.host import Host
    from sparkd.base.host.docker import ContainerFacts


def end_orphan(host: Host, containers: Containers, orphan: ContainerFacts) -> None:
    """Stop and remove a container whose agent is gone, with its engine's segments and record. Raises LaunchError."""
    segments: tuple[UnlinkSegment, ...] = ()
    with suppress(OSError, ValueError):  # any user can make more files in /dev/shm than are read
        segments = find_own_segments(host, orphan.pid) if orphan.running and orphan.pid > 1 else ()
    if orphan.running:
        with suppress(LaunchError):  # the removal below kills it too
            containers.stop(orphan.id, 0)  # vLLM drains nothing after SIGTERM, and the other ranks wait for this end
    containers.remove(orphan.id)
    for segment in segments:
        unlink_segment(segment, host)
    record = read_rank(host).find_record(orphan)
    if record is not None and record.container_id in ("", orphan.id):
        for path, identity in record.segments.items():
            unlink_segment(UnlinkSegment(path, *identity), host)
        with suppress(OSError):  # the next rank's record replaces it
            forget_rank(host)


def forget_rank(host: Host) -> None:
    """Remove the rank's record, unless a segment is left, which the check shared-memory finds by it. Raises OSError."""
    if not left_segments(host):
        Path(host.files.real(RANK_FILE.path)).unlink(missing_ok=True)
