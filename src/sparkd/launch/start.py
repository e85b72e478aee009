"""From plan to running rank: labels, container, and the reader of its log."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from functools import partial

from msgspec import Struct, field

from sparkd.engine.forward import Forwarder
from sparkd.engine.log_reader import LogReader
from sparkd.guard.guard import Guard
from sparkd.hands import Hands, segments
from sparkd.hands.rank import Rank
from sparkd.host import Host, docker
from sparkd.host.docker_facts import LABEL
from sparkd.launch.plan import LaunchPlan
from sparkd.lib.log import Events
from sparkd.preflight.fixes import UnlinkSegment
from sparkd.pulse import Pulse

NOTE_SECONDS = 3.0
LOOKS = 10
"""Looks for who has a new segment mapped, before it is held to be another program's."""
LOG_END_SECONDS = 0.3
"""For the last lines of an ended container to arrive."""


class Running(Struct):
    """A rank under way. `ready` once it has completed a prompt."""

    rank: Rank
    log: LogReader
    started_at: float
    ready: bool = False
    segments: set[UnlinkSegment] = field(default_factory=set)
    """Shared memory that its processes were seen to have open or mapped."""
    guard: Guard | None = None
    """None where memory is not watched."""
    oom_kills: int | None = None
    """How many processes the kernel had killed for memory before; None where it does not count them."""
    _looks: Counter[tuple[int, int]] = field(default_factory=Counter)
    """How often a segment, by device and inode, was looked for among its processes."""

    def note_segments(self, host: Host, pulse: Pulse) -> None:
        """Remember what its processes have mapped now. What can't be looked at is left to a later preflight.

        Its processes are only looked at when there are segments that are not known to be its own, nor somebody else's.
        """
        # Beside the main loop: a process that its driver holds in the kernel hangs whoever reads its maps.
        look = partial(segments.mapped_below, host, self.rank.pid)
        with suppress(OSError):
            new = [(one.device, one.inode) for one in segments.named(host)]
            new = [identity for identity in new if self._looks[identity] < LOOKS]
            if new:
                found = pulse.beside(look, NOTE_SECONDS, "looking at the rank")
                self.segments.update(found)
                self._looks.update(new)
                self._looks.update({(one.device, one.inode): LOOKS for one in found})

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.started_at


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
    host: Host,
    forwarder: Forwarder,
    put: Callable[[int, str], None],
    events: Events,
    bell: Callable[[], None],
    ray_token: str = "",
) -> Running:
    """Launch the rank; its log goes to `put(priority, line)`. Raises LaunchError (exit 11)."""
    rank = hands.launch(plan, labels(plan, epoch, hands.owner.invocation), ray_token)
    log = LogReader(partial(docker.follow_log, host, rank.container_id), forwarder, put, events, bell)
    log.start()
    return Running(rank, log, time.monotonic())
