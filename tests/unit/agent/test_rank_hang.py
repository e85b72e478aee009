"""A rank that hangs is found by its stopped processes, or by its idle ones while requests wait."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from msgspec.structs import replace
from tests.tree import Tree
from tests.unit.cluster_nodes import BRIEF, AgentUnderTest
from tests.unit.followers import LOADING, following
from tests.unit.nodes import Node, report, until

from sparkd.agent.daemon.hangs import group_is_idle, may_be_hang
from sparkd.agent.daemon.shutdown import shutdown_on_error
from sparkd.agent.engine.hang import HALTED_SECONDS, IDLE_SECONDS, HangLook, HangWatch
from sparkd.base.lib.errors import Cause, EngineDeadError, NotReadyError, PeerLostError, SparkdError, StalledError
from sparkd.base.state.file import STACKS
from sparkd.base.status.figures import EngineReport
from sparkd.base.status.model import Phase


def test_a_stopped_rank_ends_the_run_and_leaves_its_stacks(worker: AgentUnderTest, head: Node) -> None:
    tree, group = Tree(Path(worker.agent.host.files.root)), f"/docker/{'c' * 64}"
    with following(worker, LOADING) as (rank, process, walk):
        pid = process.pid
        tree.process(pid, "VLLM::Worker_TP", state="T", cgroup=f"0::{group}")
        tree.file(f"/sys/fs/cgroup{group}/cgroup.procs", f"{pid}\n")
        head.publish(report(0, phase=Phase.SERVING, epoch="e", plan_digest="d"))
        until(lambda: rank.hang is not None and rank.hang.state is not None)
        assert rank.hang is not None
        assert rank.hang.state is not None
        since = dict.fromkeys(rank.hang.state.halted, rank.hang.state.last.at - HALTED_SECONDS)
        rank.watch_hang(replace(rank.hang, state=replace(rank.hang.state, halted=since)))
        error = walk.ended_by(StalledError)
        assert f"rank 1 on {worker.report.node} hangs: its process {pid} (VLLM::Worker_TP) is stopped" in error.reason
        assert shutdown_on_error(replace(worker.agent, pace=BRIEF), rank, error) == 15
    (file,) = (tree.root / STACKS.lstrip("/")).iterdir()
    text = file.read_text()
    assert f": {error.reason}\n" in text
    assert f"== process {pid} (VLLM::Worker_TP) in state T" in text
    assert any(line.startswith("engine.stacks.kept") for line in worker.events.lines)


class IdleWatch(HangWatch):
    def is_idle(self) -> bool:
        return True


def test_an_idle_worker_says_so_only_while_requests_of_its_head_wait(worker: AgentUnderTest, head: Node) -> None:
    with following(worker, LOADING) as (rank, _, _):
        head.publish(report(0, phase=Phase.SERVING, epoch="e", plan_digest="d"))
        until(lambda: rank.hang is not None)
        rank.watch_hang(IdleWatch("rank 1", HangLook, worker.agent.loop.start, bool, bool))
        waiting = report(0, phase=Phase.DEGRADED, epoch="e", plan_digest="d")
        head.publish(waiting)
        until(lambda: worker.report.engine.idle_seconds == 30)
        assert not group_is_idle(worker.agent, rank), "the other rank is not known to be idle"
        head.publish(replace(waiting, engine=EngineReport(idle_seconds=30)))
        until(lambda: group_is_idle(worker.agent, rank))
        head.publish(report(0, phase=Phase.SERVING, epoch="e", plan_digest="d"))
        until(lambda: worker.report.engine.idle_seconds is None)


def test_no_rank_is_called_idle_while_docker_is_away_and_its_log_is_full(worker: AgentUnderTest, head: Node) -> None:
    with following(worker, LOADING, docker_goes=True) as (rank, _, _):
        report_of_head = report(
            0, phase=Phase.DEGRADED, epoch="e", plan_digest="d", engine=EngineReport(idle_seconds=30)
        )
        head.publish(report_of_head)
        until(lambda: rank.hang is not None and rank.log.broken_off_at is not None)
        rank.watch_hang(IdleWatch("rank 1", HangLook, worker.agent.loop.start, bool, bool))
        until(lambda: worker.report.phase is Phase.DEGRADED)
        assert not group_is_idle(worker.agent, rank)
        assert worker.report.engine.idle_seconds is None
        rank.log.stop(5)
        rank.log.broken_off_at = time.monotonic() - IDLE_SECONDS
        until(lambda: group_is_idle(worker.agent, rank) and worker.report.engine.idle_seconds is not None)


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
