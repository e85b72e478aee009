"""When a rank is proven to hang, and when it is not."""

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from msgspec.structs import replace
from tests.tree import Tree
from tests.unit.nodes import until

from sparkd.agent.daemon.hangs import may_be_hang
from sparkd.agent.engine.hang import FROZEN, HangState, HangWatch, Look, advance, describe_halt, look_at_rank
from sparkd.agent.engine.health import Continue, Failure, Observation, decide, healthy
from sparkd.base.config.settings import Supervise
from sparkd.base.host import Host
from sparkd.base.host.processes import read_process, scan_processes
from sparkd.base.lib.errors import Cause, EngineDeadError, NotReadyError, PeerLostError, SparkdError, StalledError
from sparkd.base.status.model import Phase
from sparkd.base.vllm.counters import Counters

STOPPED = "its process 7 (VLLM::Worker) is stopped (state T)"


def after(*looks: Look) -> HangState:
    state = None
    for look in looks:
        state = advance(state, look)
    assert state is not None
    return state


@pytest.mark.parametrize(
    ("looks", "halt"),
    [
        ([Look(0, (STOPPED,)), Look(10, (STOPPED,)), Look(20, (STOPPED,))], f"{STOPPED} for 20 s"),
        ([Look(0, (STOPPED,)), Look(10, (STOPPED,)), Look(19.9, (STOPPED,))], ""),
        ([Look(0, (STOPPED,)), Look(10), Look(20, (STOPPED,))], ""),  # a person has continued it
        ([Look(0, (STOPPED,)), Look(20, (STOPPED,))], ""),  # nobody has looked meanwhile
        ([Look(0, (STOPPED,)), Look(10, (STOPPED, FROZEN)), Look(20, (FROZEN,))], ""),
        ([Look(at, (STOPPED, FROZEN)) for at in (0, 10, 20)], f"{STOPPED} for 20 s"),
        ([Look(at, (STOPPED, FROZEN)) for at in (0, 10, 20, 30)], f"{STOPPED}, and 1 more for 20 s"),
        ([Look(at, (FROZEN,)) for at in (0, 10, 20)], ""),  # as by docker commit
        ([Look(at, (FROZEN,)) for at in (0, 10, 20, 30)], f"{FROZEN} for 30 s"),
    ],
)
def test_a_rank_that_stays_stopped_for_twenty_seconds_hangs(looks: list[Look], halt: str) -> None:
    assert describe_halt(after(*looks)) == halt


BEFORE = Look(0, (), frozenset({6, 7}), engine_seconds=9, other_seconds=5)


@pytest.mark.parametrize(
    ("changes", "still"),
    [
        ({}, True),
        ({"other_seconds": 5.3}, True),  # it answers the agent's own requests
        ({"other_seconds": 6.5}, False),  # it makes tokens of a long text
        ({"engine_seconds": 9.01}, False),  # one tick
        ({"pids": frozenset({6, 7, 8})}, False),  # a compiler
        ({"unread": True}, False),  # dockerd hangs, and its log is full
    ],
)
def test_any_work_of_a_process_begins_the_time_again(changes: dict[str, object], still: bool) -> None:
    state = after(BEFORE, replace(BEFORE, at=10, **changes))
    assert (state.still_since == 0) is still


def decide_after(
    *, idle: bool, seconds: int = 60, health: int | None = 200, compiles: bool = False
) -> Continue | Failure:
    """Of an engine that gives no token from the first second on."""
    decision: Continue | Failure = Continue(healthy(0))
    for at in range(1, seconds + 1):
        if isinstance(decision, Continue):
            counters = None if health is None else Counters(1, 0, 5, 5, 5)
            observation = Observation(at, health, counters, idle=idle, compiles=compiles)
            decision = decide(decision.state, observation, Supervise())
    return decision


def test_an_engine_that_gives_no_token_while_no_rank_does_anything_is_ended_after_half_a_minute() -> None:
    assert isinstance(decide_after(idle=True, seconds=30), Continue)
    ended = decide_after(idle=True)
    assert isinstance(ended, StalledError)
    assert ended.reason == (
        "requests run and no token came for 30 s, and for 30 s no rank used a CPU or a GPU: it hangs"
    )
    assert isinstance(decide_after(idle=True, health=None), Continue), "an engine without requests is idle, too"
    assert isinstance(decide_after(idle=True, compiles=True), Continue), "compilers that are held use no CPU"


def test_a_prefill_of_minutes_and_a_compiler_are_no_proof() -> None:
    assert isinstance(decide_after(idle=False, seconds=300), Continue)
    assert isinstance(decide_after(idle=True, seconds=300, compiles=True), Continue)


@pytest.fixture
def rank(tree: Tree) -> Tree:
    """Process 5 began the container, 6 is the API server; somebody has run 9 by docker exec."""
    tree.process(5, "docker-init", parent=2)
    tree.process(6, "vllm", parent=5)
    tree.process(7, "VLLM::EngineCor", parent=6)
    tree.process(8, "VLLM::Worker_TP", parent=7)
    tree.process(9, "top", parent=3, state="T")
    return tree


def look_into(tree: Tree) -> Look:
    host = Host(tree.root)
    return look_at_rank(host, scan_processes(host.files), 5, 1.0)


def test_a_stopped_process_of_the_rank_is_seen_but_no_compiler_and_nobodys_program_beside_it(rank: Tree) -> None:
    assert look_into(rank).halted == ()
    rank.process(10, "cicc", parent=8, state="T")
    assert look_into(rank).halted == ()
    for state in "Tt":  # a person's, whose parent has ended
        rank.process(11, "vim", parent=5, state=state)
        assert look_into(rank).halted == ()
    rank.process(6, "vllm", parent=5, state="T")
    assert look_into(rank).halted == ("its process 6 (vllm) is stopped (state T)",)
    rank.process(6, "vllm", parent=5)
    rank.process(8, "VLLM::Worker_TP", parent=7, state="t")
    with pytest.raises(ValueError, match="a debugger holds one"):
        look_into(rank)
    rank.process(8, "VLLM::Worker_TP", parent=7, state="T")
    assert look_into(rank).halted == ("its process 8 (VLLM::Worker_TP) is stopped (state T)",)


@pytest.mark.parametrize(
    ("cgroup", "file", "frozen", "thawed"),
    [
        ("0::/docker/x", "/sys/fs/cgroup/docker/x/cgroup.events", "populated 1\nfrozen 1\n", "populated 1\nfrozen 0\n"),
        ("0::/x", "/sys/fs/cgroup/unified/x/cgroup.events", "populated 1\nfrozen 1\n", "populated 1\nfrozen 0\n"),
        ("3:cpu:/y\n2:freezer:/docker/x", "/sys/fs/cgroup/freezer/docker/x/freezer.state", "FROZEN\n", "THAWED\n"),
    ],
)
def test_a_frozen_group_of_either_version_is_seen(rank: Tree, cgroup: str, file: str, frozen: str, thawed: str) -> None:
    rank.process(5, "docker-init", parent=2, cgroup=cgroup)
    rank.file(file, thawed)
    assert look_into(rank).halted == ()
    rank.file(file, frozen)
    assert look_into(rank).halted == (FROZEN,)


def test_a_rank_without_processes_is_not_judged(tree: Tree) -> None:
    with pytest.raises(ValueError, match="no process"):
        look_into(tree)


@dataclass
class WatchedRank:
    """A rank of the test, looked at once a second."""

    now: float = 0.0
    look: Look = field(default_factory=lambda: replace(BEFORE))
    gpu_idle: bool = True
    compiles: bool = False

    def __post_init__(self) -> None:
        self.watch = HangWatch(
            "rank 1 on spark2",
            lambda at: replace(self.look, at=at),
            at_once,
            lambda: self.gpu_idle,
            lambda: self.compiles,
            lambda: self.now,
        )

    def after(self, seconds: int) -> bool:
        """Whether it is idle then."""
        idle = False
        for _ in range(seconds):
            self.now += 1
            self.watch.check()
            idle = self.watch.is_idle()
        return idle


def at_once(work: Callable[[], Look]) -> Future[Look]:
    future: Future[Look] = Future()
    try:
        future.set_result(work())
    except OSError as error:
        future.set_exception(error)
    return future


def test_a_stopped_rank_is_given_up_with_its_process_and_without_a_task_for_anybody() -> None:
    rank = WatchedRank(look=replace(BEFORE, halted=(STOPPED,)))
    rank.after(19)
    with pytest.raises(StalledError) as given_up:
        rank.after(6)
    assert given_up.value.reason == f"rank 1 on spark2 hangs: {STOPPED} for 20 s; who did that can't be known"
    assert given_up.value.hint.startswith("nothing is to be done")


def test_a_stopped_rank_whose_compiler_runs_is_given_up_once_that_has_ended() -> None:
    rank = WatchedRank(look=replace(BEFORE, halted=(STOPPED,)), compiles=True)
    rank.after(100)
    rank.compiles = False
    with pytest.raises(StalledError):
        rank.after(3)


def test_a_rank_is_idle_whose_processes_sleep_and_whose_gpu_is_known_to_be_idle() -> None:
    rank = WatchedRank()
    assert not rank.after(30)
    assert rank.after(3)
    rank.gpu_idle = False
    assert not rank.after(1)
    rank.gpu_idle = True
    assert not rank.after(9), "one reading of NVML is of a moment"
    assert rank.after(1)
    rank.look = replace(rank.look, engine_seconds=10)
    assert not rank.after(4)


def test_an_unreadable_rank_is_no_proof() -> None:
    rank = WatchedRank()
    rank.after(40)

    def unreadable(_: float) -> Look:
        raise OSError

    rank.watch.look = unreadable
    assert not rank.after(20)


@pytest.mark.parametrize(
    ("error", "failed_in", "hangs"),
    [
        (StalledError("no token"), Phase.SERVING, True),
        (NotReadyError("stands still", cause=Cause.LOAD_STALLED), Phase.LOADING, True),
        (NotReadyError("too late"), Phase.LOADING, False),
        (PeerLostError("rank 0 failed", cause=Cause.PEER_FAILED), Phase.DEGRADED, True),
        (PeerLostError("rank 0 failed", cause=Cause.PEER_FAILED), Phase.SERVING, False),
        (PeerLostError("rank 0 leaves", cause=Cause.PEER_STOPPED), Phase.DEGRADED, False),
        (EngineDeadError("dead"), Phase.DEGRADED, False),
    ],
)
def test_stacks_are_kept_of_a_rank_that_ends_by_a_hang(error: SparkdError, failed_in: Phase, hangs: bool) -> None:
    assert may_be_hang(error, failed_in) is hangs


def look_at(pid: int, *, waits: bool = True) -> Look:
    process = read_process(Host().files, pid)
    assert process is not None
    return look_at_rank(Host(), [process], pid, time.monotonic(), waits=waits)


@contextmanager
def sleeper() -> Iterator[tuple[subprocess.Popen[bytes], Callable[[], Look]]]:
    """A process of this machine, and its look."""
    with subprocess.Popen(["sleep", "60"]) as process:
        try:
            yield process, lambda: look_at(process.pid)
        finally:
            process.kill()


def test_on_this_kernel_a_stopped_process_is_seen_and_one_that_sleeps_uses_no_tick() -> None:
    with sleeper() as (process, look):
        time.sleep(0.2)
        first = look()
        time.sleep(0.5)
        assert replace(look(), at=first.at) == first
        process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WNOWAIT)
        assert look().halted == (f"its process {process.pid} (sleep) is stopped (state T)",)


def test_on_this_kernel_a_process_whose_output_nobody_reads_is_seen_to_wait_for_that() -> None:
    with subprocess.Popen(["yes"], stdout=subprocess.PIPE) as process:
        try:
            until(lambda: look_at(process.pid).unread)
            assert not look_at(process.pid, waits=False).unread, "it costs time"
        finally:
            process.kill()
    with sleeper() as (_, look):
        assert not look().unread


FREEZERS = (
    (Path("/sys/fs/cgroup/freezer"), "freezer.state", "FROZEN", "THAWED"),
    (Path("/sys/fs/cgroup/unified"), "cgroup.freeze", "1", "0"),
    (Path("/sys/fs/cgroup"), "cgroup.freeze", "1", "0"),
)


@pytest.mark.skipif(os.getuid() != 0, reason="a control group is root's")
@pytest.mark.parametrize(("root", "file", "frozen", "thawed"), FREEZERS)
def test_on_this_kernel_a_frozen_group_is_seen(root: Path, file: str, frozen: str, thawed: str) -> None:
    if not (root / "cgroup.procs").exists() or (file == "cgroup.freeze" and not (root / "cgroup.controllers").exists()):
        pytest.skip(f"no {root} of this kind")
    group = root / f"sparkd-test-{os.getpid()}"
    group.mkdir()
    try:
        with sleeper() as (process, look):
            (group / "cgroup.procs").write_text(str(process.pid))
            assert look().halted == ()
            (group / file).write_text(frozen)
            try:
                deadline = time.monotonic() + 5
                while look().halted != (FROZEN,) and time.monotonic() < deadline:
                    time.sleep(0.02)
                assert look().halted == (FROZEN,)
            finally:
                (group / file).write_text(thawed)
    finally:
        deadline = time.monotonic() + 5
        while time.monotonic() < deadline:
            try:
                group.rmdir()
                break
            except OSError:
                time.sleep(0.05)
