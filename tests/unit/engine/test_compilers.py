"""Which compilers are held back while memory is short, and for how long."""

import itertools
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

import pytest
from tests.unit.clock import unstalled
from tests.unit.cluster_nodes import EventLines
from tests.unit.nodes import until

from sparkd.agent.engine.compilers import LONGEST_SECONDS, RESUME_BYTES, CompilerWatch, Decision, Key, decide
from sparkd.base.host.processes import Process

LIMIT = 12 << 30
SHORT, BETWEEN, ENOUGH = LIMIT - 1, LIMIT, LIMIT + RESUME_BYTES
A, B, C = (1, 10), (2, 20), (3, 30)


@pytest.mark.parametrize(
    ("available_bytes", "held", "decision"),
    [
        (SHORT, (), Decision(hold=(B, C))),
        (SHORT, (B,), Decision(hold=(C,))),
        (SHORT, (B, C), Decision()),
        (SHORT, (A, B), Decision(hold=(C,), resume=(A,))),  # the one before it has ended
        (BETWEEN, (), Decision()),
        (BETWEEN, (B, C), Decision()),
        (BETWEEN, (A, B, C), Decision(resume=(A,))),  # none runs: nothing would give memory back
        (ENOUGH, (B, C), Decision(resume=(B,))),  # one at a time
        (ENOUGH, (), Decision()),
    ],
)
def test_all_but_the_oldest_wait_while_memory_is_short(
    available_bytes: int, held: tuple[Key, ...], decision: Decision
) -> None:
    assert decide(available_bytes, LIMIT, (A, B, C), dict.fromkeys(held, 0.0), 1.0) == decision


def test_a_single_compiler_is_never_stopped() -> None:
    assert decide(0, LIMIT, (A,), {}, 1.0) == Decision()
    assert decide(0, LIMIT, (), {}, 1.0) == Decision()


@pytest.mark.parametrize("available_bytes", [SHORT, BETWEEN])
def test_the_oldest_may_hang_and_then_none_waits_for_it_for_ever(available_bytes: int) -> None:
    assert decide(available_bytes, LIMIT, (A, B), {B: 0.0}, LONGEST_SECONDS - 1) == Decision()
    assert decide(available_bytes, LIMIT, (A, B), {B: 0.0}, LONGEST_SECONDS) == Decision(resume=(B,))


class Compilers:
    """Three, of whose signals some fail, on a machine whose memory is short."""

    def __init__(self, failing: int = 0, stopped: frozenset[Key] = frozenset()) -> None:
        self.failing, self.stopped = failing, stopped
        self.events = EventLines()

    def list(self) -> Iterator[Process]:
        for pid, start_time in (A, B, C):
            yield Process(pid, "cicc", "T" if (pid, start_time) in self.stopped else "R", 1, 1, 1, start_time)

    def set_held(self, key: Key, held: bool) -> bool:
        if key[0] == self.failing:
            raise OSError("no descriptor")
        self.stopped = self.stopped | {key} if held else self.stopped - {key}
        return True

    def watch(
        self, floor_bytes: int = LIMIT, processes: Callable[[], Iterable[Process]] | None = None
    ) -> CompilerWatch:
        return CompilerWatch(
            floor_bytes=floor_bytes,
            ended=threading.Event(),
            processes=processes or self.list,
            available_bytes=lambda: SHORT,
            set_held=self.set_held,
            events=self.events,
        )


@contextmanager
def running(watch: CompilerWatch) -> Iterator[None]:
    thread = threading.Thread(target=watch.run)
    thread.start()
    try:
        yield
    finally:
        watch.ended.set()
        thread.join()


@pytest.mark.parametrize(("failing", "stopped"), [(0, {B, C}), (3, {B}), (2, {C})])  # an error holds up no other
def test_a_stopped_compiler_continues_once_the_watch_ends_also_after_errors(failing: int, stopped: set[Key]) -> None:
    compilers = Compilers(failing)
    watch = compilers.watch()
    with running(watch):
        until(lambda: watch.count == 3 and compilers.events.lines and watch.held)
        assert compilers.stopped == stopped
        assert set(watch.held) == stopped
    assert not compilers.stopped
    assert watch.count == 0


def test_the_first_compilers_are_held_before_they_have_taken_the_reserve() -> None:
    compilers, looks = Compilers(), list[float]()

    def list_from_the_third_look() -> Iterator[Process]:
        looks.append(unstalled())
        yield from compilers.list() if len(looks) > 2 else ()

    with running(compilers.watch(processes=list_from_the_third_look)):
        until(lambda: compilers.stopped == {B, C})
    assert looks[2] - looks[1] < 2, "18 of them have taken 20 GiB within 20 s, and the reserve is 11 GiB"


def test_a_compiler_that_an_earlier_agent_stopped_continues_where_memory_is_no_longer_watched() -> None:
    compilers = Compilers(stopped=frozenset((B, C)))
    with running(compilers.watch(floor_bytes=0)):
        until(lambda: not compilers.stopped)


def test_the_engines_own_processes_stay_known_after_their_end_and_compilers_do_not() -> None:
    present = [Process(7, "VLLM::Worker_TP", "S", 1, 1, 9, 1), Process(8, "cicc", "R", 1, 1, 1, 1)]
    watch = Compilers().watch(floor_bytes=0, processes=lambda: tuple(present))
    with running(watch):
        until(lambda: 7 in watch.pids)
        present[:1] = [Process(9, "python3", "Z", 1, 1, 1, 1), Process(10, "python3", "S", 1, 1, 1, 1)]
        until(lambda: watch.pids != {7})
    assert watch.pids == {7, 10}


def test_an_error_is_logged_once_and_the_watch_continues() -> None:
    compilers, looks = Compilers(), itertools.count()

    def fail_at_three_looks() -> Iterator[Process]:
        if next(looks) < 3:
            raise OSError("no memory")
        yield from compilers.list()

    with running(compilers.watch(processes=fail_at_three_looks)):
        until(lambda: compilers.stopped == {B, C})
    assert [line.split()[0] for line in compilers.events.lines].count("engine.compilers.unwatched") == 1
