"""Judges whether a load moves. A rank that stands still for `readiness.stall_seconds` is given up.

A rank works when it enters a step, loads a shard, reads from a disk or writes to one, or computes with new memory, as
compilers do. It moves, without work, when only its CPU or its GPU is busy: an autotuner may look so for many minutes,
and so does a spinning wait for another rank. A rank may spin until `readiness.timeout_seconds`, and work longer than
that. One that works excuses other ranks that wait for it; one that spins does not: docs/adr/0031. What decides is pure.
"""

import time
from collections.abc import Callable
from contextlib import suppress

from msgspec import Struct

from sparkd.base.host import Host
from sparkd.base.host.activity import Activity, read_activity
from sparkd.base.host.gpu import read_clocks
from sparkd.base.host.waits import read_waits
from sparkd.base.lib.errors import Cause, NotReadyError
from sparkd.base.lib.main_loop import Outcome

PACE_SECONDS = 10.0
"""Pause between two looks; a tenth of the limit where that is less."""
DISK_BYTES_PER_SECOND = 100_000
"""Least rate of work: below it the weights of a large model would take weeks. Log lines are less."""
BUSY_CORES = 0.2
"""Least use of a busy rank. An idle one took 0.01 to 0.02; one that loads, with seven others on two cores, 0.29 up."""
FAULTS_PER_SECOND = 100
"""Least rate of page faults of work. A process that spins has none; a rank that loaded had 5,000 to 110,000."""
GPU_BUSY_PERCENT = 10
"""Least utilization of a busy GPU. A desktop takes some 3."""
HALTED_LOOKS = 3
"""Looks in which a thread is halted before that ends its rank."""


class LoadLook(Struct, frozen=True):
    """What a rank had done at one moment. `waits` and `halted` are read only once it seems to stand still."""

    at: float
    progress: tuple[object, ...] = ()
    """Step, count and stage of the load."""
    activity: Activity = Activity()
    gpu_busy: bool = False
    waits: str = ""
    """What its threads wait for, in words."""
    halted: frozenset[int] = frozenset()
    """Threads that were stopped or uninterruptible at that moment."""


class LoadState(Struct, frozen=True):
    """State at the last look."""

    last: LoadLook
    still_seconds: float = 0.0
    """Time without a move."""
    idle_seconds: float = 0.0
    """Time without work. Other ranks judge by it."""
    halts: tuple[frozenset[int], ...] = ()
    """What was halted in the last looks, HALTED_LOOKS at most."""

    @property
    def halted(self) -> bool:
        """Whether a thread stays halted: one that waits for a disk, or whose stack py-spy reads, is so for a moment."""
        return len(self.halts) == HALTED_LOOKS and bool(frozenset.intersection(*self.halts))


def advance(load: LoadState | None, look: LoadLook) -> LoadState:
    """The state after one more look. Pure."""
    if load is None:
        return LoadState(look, halts=(look.halted,))
    activity_before, activity = load.last.activity, look.activity
    elapsed_seconds = look.at - load.last.at
    disk_bytes = activity.disk_bytes - activity_before.disk_bytes
    cpu_seconds = activity.cpu_seconds - activity_before.cpu_seconds
    is_busy = cpu_seconds > BUSY_CORES * elapsed_seconds
    works = (
        look.progress != load.last.progress
        or disk_bytes > DISK_BYTES_PER_SECOND * elapsed_seconds
        or (is_busy and activity.faults - activity_before.faults > FAULTS_PER_SECOND * elapsed_seconds)
        or min(disk_bytes, cpu_seconds) < 0  # a process has ended, and its parent has not waited for it
    )
    moves = works or is_busy or look.gpu_busy
    still_seconds, idle_seconds = load.still_seconds + elapsed_seconds, load.idle_seconds + elapsed_seconds
    halts = (*load.halts, look.halted)[-HALTED_LOOKS:]
    return LoadState(look, 0.0 if moves else still_seconds, 0.0 if works else idle_seconds, halts)


def is_stalled(load: LoadState, limit_seconds: float, others: tuple[float | None, ...]) -> bool:
    """Whether this rank is to be given up. Pure.

    `others`: how long each other rank has been idle, by its own report; None where it works or does not load yet. A
    rank may wait for one that works. Where all stand still, the one that has done so for longest ends first, and the
    others with it. One with a halted thread waits for no other.
    """
    if load.still_seconds < limit_seconds:
        return False
    if load.halted:
        return True
    idle_others = [seconds for seconds in others if seconds is not None and seconds >= limit_seconds / 2]
    late_seconds = 3 * pace_seconds(limit_seconds)  # another rank's report may be so old
    is_first = all(seconds + late_seconds <= load.idle_seconds for seconds in idle_others)
    return len(idle_others) == len(others) and (is_first or load.still_seconds >= limit_seconds + late_seconds)


def pace_seconds(limit_seconds: float) -> float:
    """Pause between two looks."""
    return min(PACE_SECONDS, limit_seconds / 10)


class LoadMonitor(Struct):
    """Watches one load, for the main thread.

    `start` makes the thread of each look: /proc of a process that hangs may hang too.
    """

    host: Host
    pid: int
    """The rank's first process."""
    gpus: bool
    limit_seconds: int
    """0: the load is not watched."""
    start: Callable[[Callable[[], LoadLook]], Outcome[LoadLook]]
    clock: Callable[[], float] = time.monotonic
    _load: LoadState | None = None
    _has_worked: bool = False
    _looking: Outcome[LoadLook] | None = None
    _next_look_at: float = float("-inf")

    def check(self, rank: str, progress: tuple[object, ...], others: tuple[float | None, ...]) -> LoadState | None:
        """The state where the rank is idle; None while it works. A look that fails is not judged.

        Raises NotReadyError (exit 12) where `rank`, the rank in words, has stood still for too long.
        """
        now = self.clock()
        if self._looking is not None and self._looking.done():
            finished, self._looking = self._looking, None
            with suppress(OSError, ValueError):
                self._load, before = advance(self._load, finished.result()), self._load
                self._has_worked = self._has_worked or (before is not None and self._load.idle_seconds == 0)
                if is_stalled(self._load, self.limit_seconds, others):
                    waits = f"; its threads: {self._load.last.waits}" if self._load.last.waits else ""
                    reason = f"{rank} has stood still for {self._load.still_seconds:.0f} s{waits}"
                    raise NotReadyError(reason, "readiness.stall_seconds allows more", cause=Cause.LOAD_STALLED)
        is_idle = self._is_idle
        if self.limit_seconds and self._looking is None and now >= self._next_look_at:
            self._next_look_at = now + pace_seconds(self.limit_seconds)
            self._looking = self.start(lambda: self._look(progress, closely=is_idle))
        return self._load if is_idle else None

    @property
    def works(self) -> bool:
        """Whether the rank has worked, and works by a recent look; False where looks fail or hang."""
        fresh_seconds = 3 * pace_seconds(self.limit_seconds)
        is_fresh = self._load is not None and self.clock() - self._load.last.at <= fresh_seconds
        return is_fresh and self._has_worked and not self._is_idle

    @property
    def _is_idle(self) -> bool:
        return self._load is not None and self._load.idle_seconds >= self.limit_seconds / 10

    def _look(self, progress: tuple[object, ...], *, closely: bool) -> LoadLook:
        table = self.host.processes()
        rank = [process for process in (table.get(self.pid), *table.descendants(self.pid)) if process]
        gpu_busy = self.gpus and any((gpu.utilization_percent or 0) >= GPU_BUSY_PERCENT for gpu in read_clocks())
        activity = read_activity(self.host.files, rank)
        return LoadLook(
            self.clock(), progress, activity, gpu_busy, *(read_waits(self.host.files, rank) if closely else ())
        )
