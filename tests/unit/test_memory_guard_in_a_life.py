"""What a kill by the memory guard, or by the kernel, means for the life of an agent."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace
from tests.tree import Tree
from tests.unit.cluster_nodes import Life, MemoryHands, addresses, free_port, life, running, settings

from sparkd.ending import engine_ended, mourn
from sparkd.errors import MemoryGuardError, NeedsPersonError, PeerLostError
from sparkd.guard.guard import Guard
from sparkd.host import Host, oom
from sparkd.launch import ledger
from sparkd.launch.ledger import COOLING_SECONDS, Failure, Ledger
from sparkd.report.node_report import Phase
from sparkd.settings.model import Memory
from sparkd.steps import cool, guard_memory


@pytest.fixture
def worker(tree: Tree) -> Iterator[Life]:
    with life(tree, 1, settings(addresses(2), free_port())) as made:
        yield made


def files(one: Life) -> Tree:
    return Tree(Path(one.agent.host.files.root))


def test_a_rank_that_the_guard_has_killed_ends_the_life_with_16_and_counts(worker: Life) -> None:
    agent = worker.agent
    agent.remember(Ledger().opened(agent.plan.digest, agent.boot_id))
    files(worker).file("/var/lib/sparkd/launches.json", worker_wrote(worker))
    with running(agent) as (rank, process):
        rank.guard = Guard(1 << 50, rank.rank.pidfd, agent.events, agent.pulse.ring)
        rank.guard.stand()
        process.wait(10)
        with pytest.raises(MemoryGuardError, match=r"memory ran out: .* MiB available") as raised:
            engine_ended(agent, rank)
        assert mourn(agent, rank, raised.value) == 16
    assert worker.report.phase is Phase.FAILED
    assert worker.report.message.startswith("memory ran out"), "what the other nodes name as the cause"
    assert ledger.parse(worker_wrote(worker)).failures == {agent.plan.digest: 1}
    assert ledger.parse(worker_wrote(worker)).last[agent.plan.digest].code == 16


def worker_wrote(worker: Life) -> str:
    assert isinstance(worker.agent.hands, MemoryHands)
    return worker.agent.hands.written["launches.json"]


def test_a_rank_that_ends_by_itself_is_not_the_guards(worker: Life) -> None:
    agent = worker.agent
    with running(agent, "RuntimeError: boom") as (rank, process):
        rank.guard = Guard(1, rank.rank.pidfd, agent.events, agent.pulse.ring)
        rank.guard.stand()
        process.kill()
        assert "RuntimeError: boom" in engine_ended(agent, rank).reason
        rank.guard.close()


@pytest.mark.parametrize(("before", "now", "told"), [(3, 4, True), (3, 3, False), (None, 4, False)])
def test_what_the_kernel_has_killed_for_memory_is_noted(worker: Life, before: int | None, now: int, told: bool) -> None:
    files(worker).file("/proc/vmstat", f"nr_free_pages 1\noom_kill {now}\n")
    with running(worker.agent) as (rank, process):
        rank.oom_kills = before
        process.kill()
        assert ("killed for want of memory" in engine_ended(worker.agent, rank).reason) is told


@pytest.mark.parametrize(
    ("text", "count"),
    [("a 1\noom_kill 7\nb 2\n", 7), ("oom_kills 7\n", None), ("oom_kill x\n", None), ("oom_kill\n", None), ("", None)],
)
def test_oom_kills_are_read_from_vmstat(tree: Tree, text: str, count: int | None) -> None:
    tree.file("/proc/vmstat", text)
    assert oom.kills(Host(tree.root).files) == count


def test_a_kernel_that_does_not_count_is_no_error(tree: Tree) -> None:
    assert oom.kills(Host(tree.root).files) is None


@pytest.mark.parametrize(
    ("codes", "hint"),
    [
        ((16,), "lower gpu_memory_utilization, max-model-len or max-num-seqs"),
        ((13, 16), "lower gpu_memory_utilization, max-model-len or max-num-seqs"),
        ((16, 13), "mend the cause, then: systemctl start sparkd-worker"),
        ((16, None), "mend the cause"),
        ((), "mend the cause"),
    ],
)
def test_a_plan_that_is_given_up_after_memory_ran_out_is_told_with_the_knobs(
    worker: Life, codes: tuple[int | None, ...], hint: str
) -> None:
    agent = worker.agent
    failures = Ledger({agent.plan.digest: len(COOLING_SECONDS)})
    for code in codes:
        failures = failures.failed(agent.plan.digest, Failure("the engine ended: boom", code))
    files(worker).file("/var/lib/sparkd/launches.json", ledger.dump(failures))
    blocked = "40.0 GiB available, 96.0 GiB needed (exit 10)"  # by the preflight after it, which launches nothing
    agent.reporter.update(last_cause=blocked)
    with pytest.raises(NeedsPersonError) as raised:
        cool(agent)
    assert hint in raised.value.hint
    assert raised.value.hint.endswith("systemctl start sparkd-worker")
    assert blocked not in raised.value.reason
    assert ("the last: the engine ended: boom" in raised.value.reason) is bool(codes)


def test_a_kill_ends_the_life_before_the_rank_is_gone_and_before_another_nodes_end_does(tree: Tree) -> None:
    floor = Memory.model_construct(floor_mib=1 << 30)  # that no machine is above
    configured = settings(addresses(2), free_port()).model_copy(update={"memory": floor})

    def other_node() -> None:
        raise PeerLostError("rank 0 has ended", "")

    with (
        life(tree, 1, configured) as made,
        running(made.agent) as (rank, process),
        subprocess.Popen(["sleep", "60"]) as victim,
    ):
        agent, alive = made.agent, rank.rank
        agent.pulse.guard = other_node
        rank.rank = replace(alive, pidfd=os.pidfd_open(victim.pid))
        guard_memory(agent, rank)
        assert victim.wait(10) == -signal.SIGKILL
        agent.pulse.linger(10, lambda: rank.guard is not None and rank.guard.over)
        with pytest.raises(MemoryGuardError, match="memory ran out"):
            agent.pulse.wait(10, alive.pidfd)
        assert process.poll() is None
        os.close(rank.rank.pidfd)


def test_a_floor_of_0_watches_nothing(tree: Tree) -> None:
    configured = settings(addresses(2), free_port()).model_copy(update={"memory": Memory(floor_mib=0)})
    with life(tree, 1, configured) as made, running(made.agent) as (rank, _):
        guard_memory(made.agent, rank)
        assert rank.guard is None
