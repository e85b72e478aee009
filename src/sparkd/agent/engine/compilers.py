"""Counts a rank's compilers, and holds some while memory is short: killed ones would end the load, held ones wait.

On a cold cache a rank compiles kernels beside its weights. Where recipe or image start more compilers than the memory
has room for, all but the oldest are held (SIGSTOP), and resumed one by one as memory comes back (SIGCONT).
"""

import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress

from msgspec import Struct, field

from sparkd.base.host.processes import Process
from sparkd.base.lib.log import Events
from sparkd.base.lib.text import GIB, size

COMPILERS = frozenset(("cicc", "ptxas", "ptxas-blackwell", "cudafe++", "cc1plus"))
"""Programs that nvcc and Triton run, and that take the memory. While they are held, ninja starts no more of them."""
RESERVE_BYTES = 11 * GIB
"""Memory kept free for the oldest compiler: the largest compile takes 10.4 GiB."""
RESUME_BYTES = 2 * GIB
"""Memory that must be available above `floor_bytes` before another one is resumed."""
PACE_SECONDS = 0.25
"""Pause between two looks while compilers run: 18 were seen to take 20 GiB within 20 s."""
RESUME_SECONDS = 2.0
"""Pause between two that are resumed: the memory of the first one must show."""
IDLE_PACE_SECONDS = 1.0
"""Pause between two looks where no compiler has run for QUIET_SECONDS. In it those 18 take 1 GiB of the reserve."""
QUIET_SECONDS = 30.0
"""After a compiler the next one may start within this time."""
LONGEST_SECONDS = 600.0
"""Limit for holding a compiler: the oldest, whose end the others await, may hang."""
LOG_SECONDS = 600.0
"""Pause between two log lines on held compilers."""

Key = tuple[int, int]
"""Process id and start time."""


class Decision(Struct, frozen=True):
    hold: tuple[Key, ...] = ()
    resume: tuple[Key, ...] = ()


def decide(
    available_bytes: int, floor_bytes: int, compilers: Sequence[Key], held: Mapping[Key, float], now: float
) -> Decision:
    """Decide which compilers to hold, and which to resume.

    Memory short: hold all but the oldest, whose end frees memory. Memory back, or all held: resume one. In both cases
    resume any that was held for LONGEST_SECONDS. Pure.

    `compilers`: the oldest first. `held`: since when.
    """
    held_compilers = [key for key in compilers if key in held]
    # Also while memory is short: the oldest may hang, and its memory never come back. The guard protects the node.
    overdue = tuple(key for key in held_compilers if now - held[key] >= LONGEST_SECONDS)
    if available_bytes < floor_bytes:
        hold = tuple(key for key in compilers[1:] if key not in held)
        held_oldest = tuple(key for key in compilers[:1] if key in held)  # the one before it has ended
        return Decision(hold, overdue or held_oldest)
    # Where none runs, none ends and frees memory.
    has_room = available_bytes >= floor_bytes + RESUME_BYTES or len(held_compilers) == len(compilers)
    return Decision(resume=overdue or tuple(held_compilers[:1] if has_room else ()))


class CompilerWatch(Struct):
    """Runs in its own thread, from the launch until the rank's end."""

    floor_bytes: int
    """Available memory below which compilers are held; 0: never."""
    ended: threading.Event
    """Set once the rank's first process has ended."""
    processes: Callable[[], Iterable[Process]]
    """Lists those of the rank's container: no other is touched."""
    available_bytes: Callable[[], int]
    set_held: Callable[[Key, bool], bool]
    """set_held(key, held) sends SIGSTOP, or else SIGCONT. Returns whether the process was there."""
    events: Events
    count: int = 0
    """Compilers that run or are held. Any thread may read it."""
    held: Mapping[Key, float] = field(default_factory=dict)
    """Held compilers, and since when. Any thread may read it."""
    pids: frozenset[int] = frozenset()
    """Processes seen in the container, except compilers. Any thread may read it."""
    _exempt: frozenset[Key] = frozenset()
    """Compilers that were held for LONGEST_SECONDS: they are not held again."""
    _failure_logged: bool = False
    _logged_at: float = float("-inf")
    _compiled_at: float = float("-inf")
    """Last time that a compiler was there."""
    _adopted: bool = False
    _resume_at: float = 0.0

    def run(self) -> None:
        """Raises nothing: where this fails, the memory guard still protects the node."""
        pause_seconds = PACE_SECONDS
        while not self.ended.wait(pause_seconds):
            try:
                now = time.monotonic()
                self._check(now)
                pause_seconds = PACE_SECONDS if now - self._compiled_at <= QUIET_SECONDS else IDLE_PACE_SECONDS
            except (OSError, ValueError) as error:  # such as where memory is short
                self._log_failure(error)
        self.count = 0
        self._resume(tuple(self.held))

    def _log_failure(self, error: Exception) -> None:
        if not self._failure_logged:
            self._failure_logged = True
            hint = "nothing is to be done: it is tried again, and the memory guard watches on"
            self.events.warning("engine.compilers.unwatched", reason=str(error), hint=hint)

    def _check(self, now: float) -> None:
        present = [process for process in self.processes() if not process.dead]
        self._note_pids({process.pid for process in present if process.comm not in COMPILERS})
        running = [process for process in present if process.comm in COMPILERS]
        if running and not self._adopted:
            self._adopt_held(running, now)
        compilers = [(pid, began) for began, pid in sorted((process.start_time, process.pid) for process in running)]
        self.count = len(compilers)
        self.held = {key: since for key, since in self.held.items() if key in compilers}
        if compilers:
            self._compiled_at = now
        if not self.floor_bytes:
            self._resume(tuple(self.held))  # of an earlier agent, whose settings had a floor
        elif compilers:
            self._apply_decision(compilers, now)

    def _adopt_held(self, running: Iterable[Process], now: float) -> None:
        """Take over the compilers that an earlier agent held: those that are stopped at the first look."""
        self._adopted = True
        self.held = {(process.pid, process.start_time): now for process in running if process.state == "T"}

    def _note_pids(self, others: set[int]) -> None:
        if not others <= self.pids and len(self.pids) < 4096:  # a container may start any number
            self.pids |= others

    def _apply_decision(self, compilers: list[Key], now: float) -> None:
        available_bytes = self.available_bytes()
        movable = [key for key in compilers if key not in self._exempt]
        decision = decide(available_bytes, self.floor_bytes, movable, self.held, now)
        self._hold_back(decision.hold, available_bytes, now)
        none_runs = len(self.held) == len(compilers)  # so that none can end and free memory
        if decision.resume and (none_runs or now >= self._resume_at):
            self._resume_at = now + RESUME_SECONDS
            self._exempt |= {key for key in decision.resume if now - self.held[key] >= LONGEST_SECONDS}
            self._resume(decision.resume)

    def _hold_back(self, compilers: tuple[Key, ...], available_bytes: int, now: float) -> None:
        newly_held = [key for key in compilers if self._try_to_hold(key)]
        self.held = {**self.held, **dict.fromkeys(newly_held, now)}
        if newly_held and now - self._logged_at >= LOG_SECONDS:
            self._logged_at = now
            reason = f"{size(available_bytes)} are available, and the oldest compiler may take {size(RESERVE_BYTES)}"
            hint = "nothing is to be done: they continue one by one"
            self.events.info("engine.compilers.held", count=len(newly_held), reason=reason, hint=hint)

    def _try_to_hold(self, key: Key) -> bool:
        """Whether it is held now. An error must not keep the younger ones running."""
        try:
            return self.set_held(key, True)
        except OSError as error:
            self._log_failure(error)
            return False

    def _resume(self, compilers: tuple[Key, ...]) -> None:
        for key in compilers:
            with suppress(OSError):
                self.set_held(key, False)
                self.held = {other: since for other, since in self.held.items() if other != key}
