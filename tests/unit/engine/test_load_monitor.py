"""When a load stands still, and whose rank is to blame."""

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.tree import Tree
from tests.unit.engine.outcomes import at_once

from sparkd.agent.engine.load_monitor import LoadLook, LoadMonitor, LoadState, advance, is_stalled
from sparkd.base.host import Host
from sparkd.base.host.activity import Activity
from sparkd.base.lib.errors import Cause, NotReadyError

MIB = 1 << 20


@pytest.mark.parametrize(
    ("look", "moves", "works"),
    [
        (LoadLook(20, ("a",), Activity(100, 5.0, 100)), False, False),
        (LoadLook(20, ("b",), Activity(100, 5.0, 100)), True, True),
        (LoadLook(20, ("a",), Activity(100 + 2 * MIB, 5.0, 100)), True, True),
        (LoadLook(20, ("a",), Activity(100 + 10_000, 5.0, 100)), False, False),  # a page of code now and then
        (LoadLook(20, ("a",), Activity(100, 6.0, 9_000)), False, False),  # a tenth of a core: an engine that waits
        (LoadLook(20, ("a",), Activity(100, 15.0, 90_000)), True, True),  # a compiler
        (LoadLook(20, ("a",), Activity(100, 15.0, 100)), True, False),  # a spin, or a computation in place
        (LoadLook(20, ("a",), Activity(100, 5.0, 100), gpu_busy=True), True, False),
        (LoadLook(20, ("a",), Activity(100, 4.0, 100)), True, True),  # a process less
    ],
)
def test_what_counts_as_moving_and_as_work(look: LoadLook, moves: bool, works: bool) -> None:
    before = LoadState(LoadLook(10, ("a",), Activity(100, 5.0, 100)), 30, 40)
    after = advance(before, look)
    assert after.still_seconds == (0 if moves else 40)
    assert after.idle_seconds == (0 if works else 50)


def test_the_first_look_proves_nothing() -> None:
    look = LoadLook(10)
    assert advance(None, look) == LoadState(look, still_seconds=0, idle_seconds=0, halts=(frozenset(),))


def stood_still(seconds: float, *, idle: float | None = None, halted: bool = False) -> LoadState:
    """A rank that has not moved for so long, and has not worked for as long, or for `idle` seconds."""
    halts = (frozenset({101}),) * 3 if halted else ()
    return LoadState(LoadLook(1000), seconds, seconds if idle is None else idle, halts)


@pytest.mark.parametrize(
    ("load", "others", "stalled"),
    [
        (stood_still(599), (), False),
        (stood_still(600), (), True),
        (stood_still(0, idle=3000), (), False),  # it spins: readiness.timeout_seconds ends it
        (stood_still(599, halted=True), (), False),
        (stood_still(700), (None,), False),  # the other one compiles, for an hour perhaps
        (stood_still(700), (60,), False),  # it did so until a minute ago
        (stood_still(600, halted=True), (None,), True),  # a stopped thread waits for nobody
        (stood_still(600), (500,), True),  # the other one came to a stand later: it waits for this one, spinning or not
        (stood_still(600), (590,), False),  # or the other way round: it is to speak first
        (stood_still(600), (3000,), False),
        (stood_still(629), (3000,), False),
        (stood_still(630), (3000,), True),  # it did not speak
        (stood_still(600), (500, 500, None), False),
        (stood_still(600), (500, 400, 300), True),
    ],
)
def test_when_a_rank_ends_for_its_own_standstill(
    load: LoadState, others: tuple[float | None, ...], stalled: bool
) -> None:
    """`others`: how long each other rank has been idle; None where it works."""
    assert is_stalled(load, 600, others) is stalled


A, B, AB, NONE = frozenset({1}), frozenset({2}), frozenset({1, 2}), frozenset[int]()


@pytest.mark.parametrize(
    ("looks", "halted"),
    [
        ((A,), False),
        ((A, A), False),
        ((NONE, A, AB, A), True),
        ((NONE, NONE, NONE, A), False),  # py-spy reads its stack
        ((A, B, A, B), False),  # threads that wait for a disk in turn
        ((A, A, A, NONE), False),
        ((B, AB, AB, A), True),
    ],
)
def test_a_thread_is_halted_once_three_looks_in_a_row_found_it_so(
    looks: tuple[frozenset[int], ...], halted: bool
) -> None:
    state: LoadState | None = None
    for at, threads in enumerate(looks):
        state = advance(state, LoadLook(at, halted=threads))
    assert state is not None
    assert state.halted is halted


class Load:
    """A monitor of a machine made of files, with a clock of its own: the rank's first process is 100."""

    def __init__(self, tree: Tree, limit_seconds: int = 600) -> None:
        self.tree = tree
        self.now = 0.0
        self.hangs, self.looks = False, 0
        tree.process(100, "vllm")
        tree.process(101, "VLLM::Worker_TP", parent=100)
        tree.file("/proc/101/task/101/stat", (tree.root / "proc/101/stat").read_text())
        tree.file("/proc/101/task/101/wchan", "futex_wait_queue")
        self.monitor = LoadMonitor(Host(tree.root), 100, False, limit_seconds, self.start, lambda: self.now)

    def start(self, look: Callable[[], LoadLook]) -> Future[LoadLook]:
        self.looks += 1
        return Future() if self.hangs else at_once(look)

    def after(self, seconds: float, step: str = "loading weights", others: tuple[float | None, ...] = ()) -> float:
        """How long the rank has stood still by the monitor's account, looked at each second."""
        for _ in range(int(seconds)):
            self.now += 1
            load = self.monitor.check("rank 0 on spark1, loading weights,", (step,), others)
        return load.still_seconds if load else 0.0


def test_a_standstill_is_reported_after_a_tenth_of_the_limit_and_ends_the_load_at_its_end(tree: Tree) -> None:
    load = Load(tree)
    assert load.after(50) == 0
    assert load.after(30) >= 60
    with pytest.raises(NotReadyError) as raised:
        load.after(600)
    assert 600 <= load.now <= 625
    assert raised.value.cause is Cause.LOAD_STALLED
    assert raised.value.reason.startswith("rank 0 on spark1, loading weights, has stood still for 6")
    assert raised.value.reason.endswith("s; its threads: 1 of VLLM::Worker_TP in futex_wait_queue")


def test_a_rank_works_once_it_was_seen_to_and_until_a_tenth_of_the_limit_after_that(tree: Tree) -> None:
    load = Load(tree)
    load.after(50)
    assert not load.monitor.works
    load.after(20, "a new step")
    assert load.monitor.works
    load.after(60, "a new step")
    assert not load.monitor.works


def test_a_rank_that_becomes_unreadable_does_not_count_as_working(tree: Tree) -> None:
    load = Load(tree)
    load.after(50)
    load.after(20, "a new step")
    load.hangs = True
    load.after(45, "a new step")
    assert not load.monitor.works


def test_a_step_or_a_stage_begins_the_time_again(tree: Tree) -> None:
    load = Load(tree)
    for step in range(10):
        assert load.after(500, f"step {step}") > 400
    assert load.now == 5000


def test_a_load_that_is_not_watched_is_not_looked_at(tree: Tree) -> None:
    load = Load(tree, limit_seconds=0)
    assert load.after(2000) == 0
    assert load.looks == 0


def test_a_load_that_is_unreadable_is_not_ended(tree: Tree) -> None:
    load = Load(tree)
    (tree.root / "proc/101/io").mkdir()
    assert load.after(2000) == 0


def test_a_thread_that_hangs_in_the_kernel_ends_its_rank_at_the_limit_though_another_rank_works(tree: Tree) -> None:
    load = Load(tree)
    stat = tree.root / "proc/101/task/101/stat"
    running = stat.read_text()
    assert load.after(650, others=(None,)) > 600
    stat.write_text(running.replace(") S ", ") D "))
    assert load.after(10, others=(None,)) > 600, "one look proves nothing"
    stat.write_text(running)
    load.after(100, others=(None,))
    stat.write_text(running.replace(") S ", ") D "))
    with pytest.raises(NotReadyError):
        load.after(40, others=(None,))


def test_a_look_that_hangs_is_not_repeated_and_ends_nothing(tree: Tree) -> None:
    load = Load(tree)
    load.hangs = True
    assert load.after(2000) == 0
    assert load.looks == 1


@contextmanager
def watched(*command: str) -> Iterator[tuple[LoadMonitor, subprocess.Popen[bytes]]]:
    """A process of this machine, which may stand still for two seconds."""
    with subprocess.Popen(command) as process:
        try:
            if os.getuid() == 0:  # on a busy machine it would get less than what counts as work
                os.setpriority(os.PRIO_PROCESS, process.pid, -15)
            time.sleep(0.3)
            yield LoadMonitor(Host(), process.pid, False, 2, at_once), process
        finally:
            process.kill()


def check_for(monitor: LoadMonitor, seconds: float) -> None:
    """Raises where the load stands still."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        monitor.check("it", ("one step",), ())
        time.sleep(0.05)


DOWNLOAD = """
import os, sys, time
with open(sys.argv[1], "wb", buffering=0) as file:
    while True:
        file.write(bytes(50_000))
        time.sleep(0.05)
"""


def test_a_slow_download_to_a_disk_of_this_machine_is_not_ended() -> None:
    with (
        tempfile.NamedTemporaryFile(dir=Path(__file__).parent) as file,  # /tmp may be in memory
        watched(sys.executable, "-c", DOWNLOAD, file.name) as (monitor, _),
    ):
        check_for(monitor, 5)


def test_a_process_of_this_machine_that_computes_in_one_step_is_not_ended_until_it_is_stopped() -> None:
    with watched(sys.executable, "-c", "while True: pass") as (monitor, process):
        check_for(monitor, 3)
        process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WNOWAIT)  # on a busy machine it has to get a turn first
        with pytest.raises(
            NotReadyError, match=r"it has stood still for 2 s; its threads: 1 of python\S* in do_signal"
        ):
            check_for(monitor, 5)
