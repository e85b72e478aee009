"""What a kill by the memory guard, or by the kernel, means for the agent's run."""

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace
from tests.tree import Tree
from tests.unit.cluster_nodes import AgentUnderTest, addresses, agent_under_test, running, settings, written
from tests.unit.limits import no_more_threads
from tests.unit.nodes import until

from sparkd.agent.daemon.context import Pace
from sparkd.agent.daemon.ended_engine import conclude_end
from sparkd.agent.daemon.run import endings
from sparkd.agent.daemon.shutdown import end_rank, shutdown_on_error
from sparkd.agent.engine.rank import Running
from sparkd.agent.preflight.fixes import UnlinkSegment
from sparkd.base.config.settings import Memory
from sparkd.base.lib.endings import Ending
from sparkd.base.lib.errors import MemoryGuardError, PeerLostError, RankEndedError
from sparkd.base.state.launch_history import FILE, LaunchHistory
from sparkd.base.status.model import Phase

ENDED = RankEndedError("the engine ended")


@pytest.fixture
def worker(tree: Tree, port: int) -> Iterator[AgentUnderTest]:
    with agent_under_test(tree, 1, settings(addresses(2), port)) as node:
        node.agent = replace(node.agent, pace=Pace(last_report_seconds=0))
        yield node


def files(node: AgentUnderTest) -> Tree:
    return Tree(Path(node.agent.host.files.root))


def test_a_rank_killed_by_the_guard_ends_the_run_with_16_and_counts(worker: AgentUnderTest) -> None:
    agent = worker.agent
    files(worker).file(FILE.path, FILE.encode(LaunchHistory().begin(agent.plan.digest, agent.boot_id)))
    with running(agent) as (rank, process):
        rank.guard_memory(1 << 50, agent.events)
        process.wait(10)
        with pytest.raises(MemoryGuardError, match=r"memory ran out: .* MiB available") as raised:
            conclude_end(agent, ENDED)
        assert shutdown_on_error(agent, rank, raised.value) == 16
    assert worker.report.phase is Phase.FAILED
    assert worker.report.message.startswith("memory ran out"), "what the other nodes name as the cause"
    history = written(agent.actions, FILE)
    assert history.failures == {agent.plan.digest: 1}
    assert history.last[agent.plan.digest].code == 16


@pytest.mark.parametrize(("grown_gib", "counts"), [(1.4, 1), (1.6, 0)], ids=["less than the headroom", "more"])
def test_memory_that_another_tenant_took_does_not_count_against_the_plan(
    worker: AgentUnderTest, grown_gib: float, counts: int
) -> None:
    """2 GiB are left beside the plan, and the floor is at half a GiB."""
    agent, machine = worker.agent, files(worker)
    machine.file(FILE.path, FILE.encode(LaunchHistory().begin(agent.plan.digest, agent.boot_id)))
    machine.folder("/dev")
    machine.file("/etc/passwd", "milo:x:1000:1000::/home/milo:/bin/bash\n")
    scope = "0::/user.slice/session-3.scope"
    machine.process(77, "python3", uid=1000, private_kib=1 << 20, cgroup=scope)
    machine.meminfo(MemTotal=120, MemFree=9, MemAvailable=9, AnonPages=2, Shmem=1)
    with running(agent) as (rank, process):
        rank.tenants = rank.read_tenants()
        machine.process(77, "python3", uid=1000, private_kib=round((1 + grown_gib) * (1 << 20)), cgroup=scope)
        segment = machine.segment("psm_1", "x" * (1 << 20))
        rank.segments |= {UnlinkSegment("/dev/shm/psm_1", segment.st_dev, segment.st_ino)}
        machine.meminfo(MemTotal=120, MemFree=1, MemAvailable=1, AnonPages=2 + grown_gib, Shmem=1 + 2**-10)
        process.kill()
        assert shutdown_on_error(agent, rank, MemoryGuardError("memory ran out: 500 MiB available")) == 16
    history = written(agent.actions, FILE)
    assert sum(history.failures.values()) == counts
    assert history.last_exit is not None
    assert history.last_exit.cause == ("memory-guard" if counts else "memory-taken")
    most = f"milo {grown_gib} GiB (session-3.scope, pid 77)"
    others = f"; others took 1.6 GiB since the launch: {most}"
    own = f"; the engine itself grew beyond its plan: others took only 1.4 GiB since the launch ({most})"
    assert history.last_exit.reason.endswith(own if counts else others)


def test_a_rank_that_ends_by_itself_is_no_kill_of_the_guard(worker: AgentUnderTest) -> None:
    agent = worker.agent
    with running(agent, "RuntimeError: boom") as (rank, process):
        rank.guard_memory(1, agent.events)
        process.kill()
        assert "RuntimeError: boom" in conclude_end(agent, ENDED).reason
        assert rank.guard is not None
        rank.guard.close()


def test_the_last_lines_of_an_ended_container_are_awaited(worker: AgentUnderTest) -> None:
    with running(worker.agent, "RuntimeError: boom", log_comes=lambda: time.sleep(1)) as (_, process):
        process.kill()
        assert "RuntimeError: boom" in conclude_end(worker.agent, ENDED).reason


WORKER_DIED = (
    "(EngineCore pid=9) ERROR 01-01 00:00:00 [x.py:1] Worker proc VllmWorker-0 died unexpectedly (exit code: -9)"
)


@pytest.mark.parametrize(("before", "now", "named"), [(3, 4, True), (3, 3, False), (None, 4, False)])
@pytest.mark.parametrize("engine_lines", [(), (WORKER_DIED,), ("RuntimeError: boom",)])
def test_an_oom_kill_by_the_kernel_is_named_where_the_engine_names_no_other_cause(
    worker: AgentUnderTest, before: int | None, now: int, named: bool, engine_lines: tuple[str, ...]
) -> None:
    files(worker).file("/proc/vmstat", f"nr_free_pages 1\noom_kill {now}\n")
    with running(worker.agent, *engine_lines) as (rank, process):
        rank.note(oom_kills=before)
        if engine_lines:
            until(lambda: rank.log.progress.cause != "")
        process.kill()
        error = conclude_end(worker.agent, ENDED)
    otherwise = {(): "engine-ended", (WORKER_DIED,): "killed-from-outside", ("RuntimeError: boom",): "engine-error"}[
        engine_lines
    ]
    kernel = named and "boom" not in error.reason
    assert error.cause == ("kernel-oom" if kernel else otherwise)
    assert ("killed for want of memory" in error.reason) is kernel


OOM_KILL = """\
6,1,{us},-;Tasks state (memory values in pages):
6,2,{us},-;[  29907]     0 29907   669159   666593   666560       33         0  5394432        0             0 python3
6,3,{us},-;oom-kill:constraint=CONSTRAINT_NONE,nodemask=(null),cpuset=/,mems_allowed=0,global_oom,task_memcg={group},\
task=python3,pid=29907,uid=0
"""
OWN, OTHER = f"/system.slice/docker-{'c' * 64}.scope", f"/system.slice/docker-{'d' * 64}.scope"
KILLED_IN_LOAD = (
    "(MainProcess pid=7) INFO 01-01 00:00:00 [x.py:479] [shutdown] Executor: waiting for worker exit count=1",
    "Traceback (most recent call last):",
    "Exception: WorkerProc initialization failed due to an exception in a background process. See stack trace",
)
STOPPED = KILLED_IN_LOAD[:1]


@pytest.mark.parametrize(
    ("engine_lines", "group", "age_seconds", "cause"),
    [
        (KILLED_IN_LOAD, OWN, 5, "kernel-oom"),
        (STOPPED, OWN, 5, "kernel-oom"),
        (("RuntimeError: boom",), OWN, 5, "kernel-oom"),
        (KILLED_IN_LOAD, OWN, 500, "killed-from-outside"),
        (KILLED_IN_LOAD, OTHER, 5, "killed-from-outside"),
        (STOPPED, OTHER, 5, "engine-stopped"),
    ],
)
def test_the_kernels_own_record_names_the_process_of_the_rank_that_it_killed(
    worker: AgentUnderTest, engine_lines: tuple[str, ...], group: str, age_seconds: float, cause: str
) -> None:
    log = OOM_KILL.format(us=round((time.monotonic() - age_seconds) * 1e6), group=group)
    files(worker).file("/dev/kmsg", log)
    with running(worker.agent, *engine_lines) as (rank, process):
        until(lambda: rank.log.progress.cause != "" and not rank.log.progress.tracing)
        process.kill()
        error = conclude_end(worker.agent, ENDED)
    assert error.cause == cause
    named = "python3 (pid 29907, 2.5 GiB), at the whole machine's memory; the largest processes then: python3 2.5 GiB"
    assert (named in error.reason) is (cause == "kernel-oom")
    assert not ("by signal 9" in error.reason and engine_lines == KILLED_IN_LOAD), "which signal it was is not known"


def test_a_worker_killed_while_it_loads_is_a_kill_by_the_kernels_count_too(worker: AgentUnderTest) -> None:
    files(worker).file("/proc/vmstat", "oom_kill 4\n")
    with running(worker.agent, *KILLED_IN_LOAD) as (rank, process):
        rank.note(oom_kills=3)
        until(lambda: rank.log.progress.killed(time.monotonic()))
        process.kill()
        assert conclude_end(worker.agent, ENDED).cause == "kernel-oom"


@pytest.mark.parametrize(("age_seconds", "cause"), [(5, "kernel-oom"), (500, "engine-ended")])
def test_an_old_kill_of_another_container_is_no_cause(worker: AgentUnderTest, age_seconds: float, cause: str) -> None:
    """Where it is recent, the record of the rank's own kill may have been dropped."""
    files(worker).file("/proc/vmstat", "oom_kill 4\n")
    files(worker).file("/dev/kmsg", OOM_KILL.format(us=round((time.monotonic() - age_seconds) * 1e6), group=OTHER))
    with running(worker.agent) as (rank, process):
        rank.note(oom_kills=3)
        process.kill()
        assert conclude_end(worker.agent, ENDED).cause == cause


def test_a_kill_ends_the_run_before_the_rank_is_gone_and_before_another_nodes_end_does(tree: Tree, port: int) -> None:
    floor = Memory.model_construct(floor_mib=1 << 30)  # no machine has as much: the guard kills at once
    configured = settings(addresses(2), port).model_copy(update={"memory": floor})

    def other_node_has_ended() -> None:
        raise PeerLostError("rank 0 has ended", "")

    with (
        agent_under_test(tree, 1, configured) as node,
        running(node.agent) as (rank, process),
        subprocess.Popen(["sleep", "60"]) as victim,
    ):
        agent = node.agent
        agent.loop.endings.end_by(*endings(agent), Ending(other_node_has_ended))
        # The guard kills another process in place of the rank, which so is not gone.
        dying = replace(rank.rank, pidfd=os.pidfd_open(victim.pid))
        guarded = Running(dying, rank.log, rank.record, bool, agent.host, agent.loop)
        agent.rank.take(guarded)
        guarded.guard_memory(floor.floor_mib << 20, agent.events)
        guard = guarded.guard
        assert guard is not None
        assert victim.wait(10) == -signal.SIGKILL
        assert agent.loop.wait_until(guard.over.is_set, 10, shielded=True)
        with pytest.raises(MemoryGuardError, match="memory ran out"):
            agent.loop.wait(10)
        assert process.poll() is None
        os.close(dying.pidfd)


def test_a_guard_for_which_there_is_no_thread_is_none_that_the_end_of_the_rank_waits_for(tree: Tree, port: int) -> None:
    with agent_under_test(tree, 1, settings(addresses(2), port)) as node, running(node.agent) as (rank, _):
        with no_more_threads(), pytest.raises(BlockingIOError):
            rank.guard_memory(1, node.agent.events)
        end_rank(node.agent, rank)
        assert rank.rank.ended.is_set()


def test_a_floor_of_0_turns_the_guard_off(tree: Tree, port: int) -> None:
    configured = settings(addresses(2), port).model_copy(update={"memory": Memory(floor_mib=0)})
    with agent_under_test(tree, 1, configured) as node, running(node.agent) as (rank, _):
        rank.guard_memory(node.agent.settings.memory.floor_mib, node.agent.events)
        guard = rank.guard
        assert guard is not None
        until(guard.over.is_set)
        assert rank.guard_state == "off"
        assert not rank.rank.ended.is_set()
