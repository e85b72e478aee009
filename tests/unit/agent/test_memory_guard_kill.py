"""A rank that the memory guard kills ends the agent's run with that cause."""

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace
from tests.tree import Tree, maps_line
from tests.unit.cluster_nodes import AgentUnderTest, addresses, agent_under_test, running, settings, written
from tests.unit.limits import no_more_threads
from tests.unit.nodes import until
from tests.unit.verdicts import present

from sparkd.agent.daemon.context import Pace
from sparkd.agent.daemon.ended_engine import conclude_end
from sparkd.agent.daemon.run import endings
from sparkd.agent.daemon.shutdown import end_rank, shutdown_on_error
from sparkd.agent.engine.rank import Running
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


def test_a_rank_killed_by_the_guard_ends_the_run_with_16_and_counts(worker: AgentUnderTest) -> None:
    agent = worker.agent
    Tree(Path(agent.host.files.root)).file(
        FILE.path, FILE.encode(LaunchHistory().begin(agent.plan.digest, agent.boot_id))
    )
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


def map_segment(machine: Tree, rank: Running, size_bytes: int) -> None:
    """Let the rank have a segment, which outlives it and is no other tenant's memory."""
    path = "/dev/shm/psm_0123abcd"
    segment = machine.segment(path.rpartition("/")[2])
    with (machine.root / path[1:]).open("r+b") as file:
        os.posix_fallocate(file.fileno(), 0, size_bytes)
    maps, group = maps_line(segment.st_dev, segment.st_ino, path), f"0::/docker/{rank.rank.container_id}"
    machine.process(rank.rank.pid, "VLLM::Worker", maps=maps, cgroup=group, uid=os.getuid())


def end_for_want_of_memory(worker: AgentUnderTest, grown_gib: float) -> LaunchHistory:
    """End a rank while another tenant has grown. 2 GiB are left beside the plan, and the floor is at half a GiB."""
    agent, machine = worker.agent, Tree(Path(worker.agent.host.files.root))
    machine.file(FILE.path, FILE.encode(LaunchHistory().begin(agent.plan.digest, agent.boot_id)))
    machine.folder("/dev")
    machine.file("/etc/passwd", "milo:x:1000:1000::/home/milo:/bin/bash\n")
    scope = "0::/user.slice/session-3.scope"
    machine.process(77, "python3", uid=1000, private_kib=1 << 20, cgroup=scope)
    machine.meminfo(MemTotal=120, MemFree=9, MemAvailable=9, AnonPages=2, Shmem=1)
    with running(agent) as (rank, process):
        rank.note_tenants()
        machine.process(77, "python3", uid=1000, private_kib=round((1 + grown_gib) * (1 << 20)), cgroup=scope)
        map_segment(machine, rank, 64 << 20)
        machine.meminfo(MemTotal=120, MemFree=1, MemAvailable=1, AnonPages=2 + grown_gib, Shmem=1 + 2**-4)
        process.kill()
        assert shutdown_on_error(agent, rank, MemoryGuardError("memory ran out: 500 MiB available")) == 16
    return written(agent.actions, FILE)


def test_memory_that_another_tenant_took_does_not_count_against_the_plan(worker: AgentUnderTest) -> None:
    history = end_for_want_of_memory(worker, 1.6)
    assert history.failures == {}
    end = present(history.last_exit)
    assert end.cause == "memory-taken"
    assert end.reason.endswith("; others took 1.6 GiB since the launch: milo 1.6 GiB (session-3.scope, pid 77)")


def test_less_than_the_headroom_that_another_tenant_took_excuses_no_plan(worker: AgentUnderTest) -> None:
    history = end_for_want_of_memory(worker, 1.4)
    assert history.failures == {worker.agent.plan.digest: 1}
    end = present(history.last_exit)
    assert end.cause == "memory-guard"
    others = "others took only 1.4 GiB since the launch (milo 1.4 GiB (session-3.scope, pid 77))"
    assert end.reason.endswith(f"; the engine itself grew beyond its plan: {others}")


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
        guarded = Running(dying, rank.log, rank.record, bool, agent.host, agent.loop, rank.compilers)
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
