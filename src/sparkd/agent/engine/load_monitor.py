"""Whether a load moves. A rank that stands still for `readiness.stall_seconds` is given up. What decides is pure.

A rank works when it enters a step, loads a shard, reads from a disk or writes to one, or computes with new memory, as
compilers do. It moves also when only its CPU or its GPU is busy: an autotuner may look so for many minutes, and so does
a spinning wait for another rank. A rank may spin until `readiness.timeout_seconds` and work longer, and a spin excuses
no other rank: docs/adr/0031.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress

from msgspec import Struct

from sparkd.base.host import Host
from sparkd.base.host.activity import Activity, read_activity, read_waits
from sparkd.base.host.gpu import read_clocks
from sparkd.base.lib.errors import Cause, NotReadyError
from sparkd.base.lib.main_loop import Outcome

PACE_SECONDS = 10.0
"""Pause between two looks; a tenth of the limit where that is less."""
DISK_BYTES_PER_SECOND = 100_000
"""At less, the weights of a large model take weeks. Log lines are less."""
BUSY_CORES = 0.2
"""An idle rank took 0.01 to 0.02, one that loaded on two cores which it shared with seven others 0.29 and more."""
FAULTS_PER_SECOND = 100
"""A process that spins has none; a rank that loaded had 5,000 to 110,000."""
GPU_BUSY_PERCENT = 10
"""A desktop takes some 3."""
HALTED_LOOKS = 3
"""Looks in which a thread is halted before that ends its rank."""


class Look(Struct, frozen=True):
    """`progress`: step, count and stage. `waits` and `halted`: read only once the rank seems to stand still."""

    at: float
    progress: tuple[object, ...] = ()
    activity: Activity = Activity()
    gpu_busy: bool = False
    waits: str = ""
    halted: frozenset[int] = frozenset()
    """Threads that were stopped or uninterruptible at that moment."""


class LoadState(Struct, frozen=True):
    """State at the last look. Other ranks judge by `idle_seconds`, the time without work."""

    last: Look
    still_seconds: float = 0.0
    idle_seconds: float = 0.0
    halts: tuple[frozenset[int], ...] = ()
    """What was halted in the last looks, HALTED_LOOKS at most."""

    @property
    def halted(self) -> bool:
        """A thread stays halted. One that waits for a disk, or whose stack py-spy reads, is so for a moment."""
        return len(self.halts) == HALTED_LOOKS and bool(frozenset.intersection(*self.halts))


def advance(before: LoadState | None, look: Look) -> LoadState:
    if before is None:
        return LoadState(look, halts=(look.halted,))
    earlier, now = before.last.activity, look.activity
    seconds = look.at - before.last.at
    disk, cpu = now.disk_bytes - earlier.disk_bytes, now.cpu_seconds - earlier.cpu_seconds
    busy = cpu > BUSY_CORES * seconds
    works = (
        look.progress != before.last.progress
        or disk > DISK_BYTES_PER_SECOND * seconds
        or (busy and now.faults - earlier.faults > FAULTS_PER_SECOND * seconds)
        or min(disk, cpu) < 0  # a process has ended, and its parent has not waited for it
    )
    moves = works or busy or look.gpu_busy
    still, idle = before.still_seconds + seconds, before.idle_seconds + seconds
    halts = (*before.halts, look.halted)[-HALTED_LOOKS:]
    return LoadState(look, 0.0 if moves else still, 0.0 if works else idle, halts)


def is_stalled(load: LoadState, limit_seconds: float, others: tuple[float | None, ...]) -> bool:
    """`others`: how long each other rank has been idle, by its own report; None where it works or does not load yet.

    A rank may wait for one that works. Where all stand still, the first that did so ends first, and the others with
    it. A thread that is stopped, or hangs in the kernel, waits for no rank.
    """
    if load.still_seconds < limit_seconds or load.halted:
        return load.still_seconds >= limit_seconds
    idle = [seconds for seconds in others if seconds is not None and seconds >= limit_seconds / 2]
    late_seconds = 3 * pace_seconds(limit_seconds)  # of another rank's report
    first = all(seconds + late_seconds <= load.idle_seconds for seconds in idle)
    return len(idle) == len(others) and (first or load.still_seconds >= limit_seconds + late_seconds)


def pace_seconds(limit_seconds: float) -> float:
    return min(PACE_SECONDS, limit_seconds / 10)


class LoadMonitor(Struct):
    """Used by the main thread. `start` makes the thread of each look: /proc of a process that hangs may hang too."""

    host: Host
    pid: int
    """The rank's first process."""
    gpus: bool
    limit_seconds: int
    """0: the load is not watched."""
    start: Callable[[Callable[[], Look]], Outcome[Look]]
    clock: Callable[[], float] = time.monotonic
    _load: LoadState | None = None
    _worked: bool = False
    _looking: Outcome[Look] | None = None
    _look_at: float = float("-inf")

    def check(self, what: str, progress: tuple[object, ...], others: tuple[float | None, ...]) -> LoadState | None:
        """The state; None while it works. Raises NotReadyError (exit 12): `what` has stood still for too long.

        What is unreadable is not judged.
        """
        now = self.clock()
        if self._looking is not None and self._looking.done():
            look, self._looking = self._looking, None
            with suppress(OSError, ValueError):
                self._load, before = advance(self._load, look.result()), self._load
                self._worked = self._worked or (before is not None and self._load.idle_seconds == 0)
                if is_stalled(self._load, self.limit_seconds, others):
                    waits = f"; its threads: {self._load.last.waits}" if self._load.last.waits else ""
                    reason = f"{what} has stood still for {self._load.still_seconds:.0f} s{waits}"
                    raise NotReadyError(reason, "readiness.stall_seconds allows more", cause=Cause.LOAD_STALLED)
        idle = self._is_idle
        if self.limit_seconds and self._looking is None and now >= self._look_at:
            self._look_at = now + pace_seconds(self.limit_seconds)
            self._looking = self.start(lambda: self._look(progress, closely=idle))
        return self._load if idle else None

    @property
    def works(self) -> bool:
        """Whether it has done, and did lately, what no rank does that only waits. False where looks fail or hang."""
        fresh_seconds = 3 * pace_seconds(self.limit_seconds)
        is_fresh = self._load is not None and self.clock() - self._load.last.at <= fresh_seconds
        return is_fresh and self._worked and not self._is_idle

    @property
    def _is_idle(self) -> bool:
        return self._load is not None and self._load.idle_seconds >= self.limit_seconds / 10

    def _look(self, progress: tuple[object, ...], *, closely: bool) -> Look:
        table = self.host.processes()
        rank = [process for process in (table.get(self.pid), *table.descendants(self.pid)) if process]
        gpu_busy = self.gpus and any((gpu.utilization_percent or 0) >= GPU_BUSY_PERCENT for gpu in read_clocks())
        activity = read_activity(self.host.files, rank)
        return Look(self.clock(), progress, activity, gpu_busy, *(read_waits(self.host.files, rank) if closely else ()))
