"""From plan to running rank: labels, container, and the reader of its log."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from sparkd.engine.forward import Forwarder
from sparkd.engine.log_reader import LogReader
from sparkd.hands import LABEL, Hands
from sparkd.hands.rank import Rank
from sparkd.host import Host, docker
from sparkd.launch.plan import LaunchPlan
from sparkd.preflight.fixes import UnlinkSegment
from sparkd.preflight.shm import NAMES

LOG_END_SECONDS = 1.0
"""For the last lines of an ended container to arrive."""


@dataclass
class Running:
    """A rank under way. `ready` once it has completed a prompt."""

    rank: Rank
    log: LogReader
    started_at: float
    ready: bool = False
    segments: tuple[UnlinkSegment, ...] = ()
    """As seen when it became ready, or when its end began."""

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.started_at


def segments(host: Host, rank: Rank) -> tuple[UnlinkSegment, ...]:
    """Shared memory that this rank's processes have mapped now: its own to clear once it has ended.

    An engine that is killed leaves its segments behind in the host's /dev/shm. Told by who maps them, they can be
    cleared at once, where preflight must wait until they have grown old.
    """
    engine = host.processes().descendants(rank.pid)
    named = [segment for segment in host.segments() if NAMES.fullmatch(segment.name)]
    mapped = {(device, inode) for device, inode, _ in host.segment_uses(engine, named).used}
    return tuple(
        UnlinkSegment(segment.path, segment.device, segment.inode, segment.allocated_bytes)
        for segment in named
        if (segment.device, segment.inode) in mapped
    )


def labels(plan: LaunchPlan, epoch: str, invocation: str) -> dict[str, str]:
    """What tells a container of sparkd's from all others, and whose it is."""
    values = {
        "role": plan.role,
        "rank": str(plan.node.rank),
        "epoch": epoch,
        "invocation": invocation,
        "plan": plan.digest,
    }
    return {LABEL + key: value for key, value in values.items()}


def start(
    hands: Hands,
    plan: LaunchPlan,
    epoch: str,
    redact: Callable[[str], str],
    put: Callable[[int, str], None],
    bell: Callable[[], None],
) -> Running:
    """Launch the rank; its log goes to `put(priority, line)`. Raises LaunchError (exit 11)."""
    rank = hands.launch(plan, labels(plan, epoch, hands.owner.invocation))

    def follow(from_now: bool) -> Iterator[tuple[int, bytes]]:
        client = docker.client()
        try:
            yield from docker.follow_log(client, rank.container_id, from_now=from_now)
        finally:
            client.close()

    log = LogReader(follow, Forwarder(redact), put, bell)
    log.start()
    return Running(rank, log, time.monotonic())
