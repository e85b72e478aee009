"""Proves that a rank that serves hangs: it is stopped or frozen, or no rank does anything while requests wait.

A process in state T, or a frozen control group, is proof enough, also on a node that does not know of requests; a
person may continue it within HALTED_SECONDS. Idleness proves a hang only where all ranks are idle: one that sleeps may
wait for one that computes, as in a pipeline. No proof are a traced process (t), a stopped compiler (CompilerWatch stops
them), a program that somebody has started beside the rank by `docker exec`, a GPU of which nothing is known, and a log
that nobody reads. What decides is pure.
"""

import re
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress

from msgspec import Struct

from sparkd.agent.engine.compilers import COMPILERS
from sparkd.base.host import Host
from sparkd.base.host.activity import read_activity
from sparkd.base.host.cgroups import is_frozen
from sparkd.base.host.processes import Process, ProcessTable
from sparkd.base.host.waits import MAX_THREADS, read_waits
from sparkd.base.lib.errors import StalledError
from sparkd.base.lib.main_loop import Outcome

HALTED_SECONDS, IDLE_SECONDS = 20.0, 30.0
"""How long a process must be stopped, and how long the processes must be idle, to prove a hang."""
FROZEN_SECONDS = 30.0
"""The same for a frozen container: `docker commit` freezes it while it copies what was written there."""
GPU_IDLE_SECONDS = 9.0
"""Time of three readings: NVML's utilization is of the last moment alone."""
LOOK_SECONDS, STALE_SECONDS = 2.0, 15.0
"""Pause between two looks (while nothing is wrong some 5 s), and the age from which one proves nothing."""
OTHERS_SHARE = 0.1
"""Share of a core: an API server that answers the agent's own requests alone takes 0.02."""
FROZEN = "its container is frozen, as by docker pause"
_ENGINE = re.compile(r"VLLM::(?!API)")


class HangLook(Struct, frozen=True):
    """What the rank's processes were, and had done, at one moment."""

    at: float
    halted: tuple[str, ...] = ()
    """What is stopped or frozen, in words."""
    pids: frozenset[int] = frozenset()
    engine_seconds: float = 0.0
    """CPU time of the engine's processes, or of all where none has the name of one."""
    other_seconds: float = 0.0
    """CPU time of the rank's other processes."""
    unread: bool = False
    """A thread waits until somebody reads what it writes: where dockerd hangs, its log."""


class HangState(Struct, frozen=True):
    """State at the last look. Times are by the clock of looks."""

    last: HangLook
    still_since: float
    """Start of the time in which the same processes have been idle."""
    halted: Mapping[str, float] = {}
    """What is halted, and since when."""


def advance(state: HangState | None, look: HangLook) -> HangState:
    """The state after one more look. Pure."""
    if state is None:
        return HangState(look, look.at, dict.fromkeys(look.halted, look.at))
    last, elapsed_seconds = state.last, look.at - state.last.at
    others_work = look.other_seconds - last.other_seconds > OTHERS_SHARE * elapsed_seconds
    is_still = (look.pids, look.engine_seconds) == (last.pids, last.engine_seconds) and not (others_work or look.unread)
    # After a longer pause a process may have run meanwhile.
    halted_before = state.halted if elapsed_seconds <= STALE_SECONDS else {}
    halted = {halt: halted_before.get(halt, look.at) for halt in look.halted}
    return HangState(look, state.still_since if is_still else look.at, halted)


def describe_halt(state: HangState) -> str:
    """What has been stopped or frozen for too long, and for how long, in words; empty where nothing has."""
    halted = [halt for halt, since in state.halted.items() if state.last.at - since >= _limit_seconds(halt)]
    if not halted:
        return ""
    more = f", and {len(halted) - 1} more" if len(halted) > 1 else ""
    return f"{halted[0]}{more} for {_limit_seconds(halted[0]):.0f} s"


def _limit_seconds(halt: str) -> float:
    """How long this halt may last before it proves a hang."""
    return FROZEN_SECONDS if halt == FROZEN else HALTED_SECONDS


def look_at_rank(host: Host, processes: Iterable[Process], pid: int, at: float, *, waits: bool = True) -> HangLook:
    """Look at the rank whose first process is `pid`. `waits`: look for blocked threads, too, which reads each one.

    Raises OSError, ValueError; the latter also where the rank has no process, or a debugger holds one.
    """
    table = ProcessTable(tuple(processes))
    rank = [process for process in (table.get(pid), *table.descendants(pid)) if process and not process.dead]
    engine = [process for process in rank if _ENGINE.match(process.comm)] or rank
    # The engine's processes, and those that they descend from. A person may have started others by docker exec.
    judged = [
        process for process in rank if process in engine or not set(engine).isdisjoint(table.descendants(process.pid))
    ]
    if not judged or any(process.state == "t" for process in judged):
        raise ValueError("the rank has no process, or a debugger holds one")
    groups = engine, [process for process in rank if process not in engine]
    engine_seconds, other_seconds = (read_activity(host.files, group).cpu_seconds for group in groups)
    # (anon_)pipe_write, by the kernel's version
    log_unread = waits and "pipe_write" in read_waits(host.files, judged, MAX_THREADS).text
    halted = (*_find_stopped(judged), *([FROZEN] if is_frozen(host.files, pid) else ()))
    return HangLook(at, halted, frozenset(process.pid for process in rank), engine_seconds, other_seconds, log_unread)


def _find_stopped(processes: Iterable[Process]) -> list[str]:
    stopped = (process for process in processes if process.state == "T" and process.comm not in COMPILERS)
    return [f"its process {process.pid} ({process.comm}) is stopped (state T)" for process in stopped]


class HangWatch(Struct):
    """Watches one rank that serves, for the main thread.

    `start` makes the thread of each look: /proc of a process that hangs may hang too.
    """

    rank: str
    """The rank in words."""
    look: Callable[[float], HangLook]
    """Looks at the rank, at this time of the clock. Raises OSError, ValueError."""
    start: Callable[[Callable[[], HangLook]], Outcome[HangLook]]
    gpu_idle: Callable[[], bool]
    """Whether the GPU is known to be idle just now; true of a plan without one."""
    compiles: Callable[[], bool]
    """Whether a compiler of the rank runs."""
    clock: Callable[[], float] = time.monotonic
    state: HangState | None = None
    _looking: Outcome[HangLook] | None = None
    _next_look_at: float = float("-inf")
    _gpu_idle_since: float | None = None
    _queried_at: float = float("-inf")

    def check(self) -> None:
        """Judge the last look, and begin the next when it is due. A look that fails is not judged.

        Raises StalledError (exit 15) where the rank is stopped or frozen.
        """
        now = self.clock()
        if self._looking is not None and self._looking.done():
            finished, self._looking = self._looking, None
            with suppress(OSError, ValueError):
                self.state = advance(self.state, finished.result())
                if (halt := describe_halt(self.state)) and not self.compiles():
                    reason = f"{self.rank} hangs: {halt}; who did that can't be known"
                    hint = "nothing is to be done: sparkd starts it again"
                    raise StalledError(reason, hint)
        if self._looking is None and now >= self._next_look_at:
            self._next_look_at = now + LOOK_SECONDS
            self._looking = self.start(lambda: self.look(now))

    def is_idle(self) -> bool:
        """Whether the rank's processes have done nothing for IDLE_SECONDS, and its GPU nothing for GPU_IDLE_SECONDS.

        It must be called every few seconds while requests wait: the calls make the GPU be read more often.
        """
        now, queried_before, self._queried_at = self.clock(), self._queried_at, self.clock()
        if not self.gpu_idle():
            self._gpu_idle_since = None
        elif self._gpu_idle_since is None or now - queried_before > GPU_IDLE_SECONDS:
            self._gpu_idle_since = now
        if self.state is None or self._gpu_idle_since is None or now - self.state.last.at > STALE_SECONDS:
            return False
        still_seconds = self.state.last.at - self.state.still_since
        return still_seconds >= IDLE_SECONDS and now - self._gpu_idle_since >= GPU_IDLE_SECONDS
