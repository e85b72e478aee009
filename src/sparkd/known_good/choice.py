"""Which plan to go back to, and with which image."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from sparkd.errors import UsageError
from sparkd.host import docker, docker_image
from sparkd.lib.dockerd.reader import DockerUnreadableError

if TYPE_CHECKING:
    from sparkd.host import Host
    from sparkd.known_good.history import Entry
    from sparkd.launch.plan import LaunchPlan

LIST = "sparkd rollback --list"


def choose(known: Sequence[Entry], wanted: str, configured: LaunchPlan | None, image_id: str) -> Entry:
    """The newest that is not what is configured, of those whose digest begins with `wanted`. Raises UsageError.

    `configured` is None where what is configured makes no plan; `image_id` is of its image, empty where not known.
    """
    if not known:
        raise UsageError("no start is known good on this node yet, so there is nothing to go back to")
    named = [one for one in known if one.plan.startswith(wanted)]
    if not named:
        raise UsageError(f"no plan that is known good begins with {wanted!r}", LIST)
    others = [one for one in named if configured is None or not _same(one, configured, image_id)]
    if not others and not wanted:
        raise UsageError(
            "what is configured is the last known good plan itself, and there is none before it",
            "`sparkd diff` shows what else differs",
        )
    return (others or named)[0]


def _same(one: Entry, plan: LaunchPlan, image_id: str) -> bool:
    return one.plan == plan.digest and image_id in ("", one.image_id)


def image_id(host: Host, ref: str) -> str | None:
    """Of an image on this node: empty where there is none; None where docker can't be asked."""
    if not docker.running(host):
        return None
    try:
        found = docker.asked(host, lambda reader: docker_image.read(reader, ref))
    except DockerUnreadableError:
        return None
    return found.id if found else ""
