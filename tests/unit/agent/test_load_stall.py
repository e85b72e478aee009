"""A load that stands still: on a head, and on a worker whose head loads too. The rank is a process of the test."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.tree import Tree
from tests.unit.agent_steps import StepsThread, joined_worker, running_steps, wait_and_join
from tests.unit.cluster_nodes import AgentUnderTest, addresses, agent_under_test, running, settings
from tests.unit.engine_server import Reply, engine, models
from tests.unit.followers import LOADING
from tests.unit.nodes import Node, node, report, until

from sparkd.agent.daemon.loading import make_ready
from sparkd.agent.daemon.serving import follow_head
from sparkd.agent.daemon.shutdown import shutdown_on_error
from sparkd.base.lib.errors import Cause, NotReadyError
from sparkd.base.status.figures import EngineReport
from sparkd.base.status.model import Phase

STALL_SECONDS = 1


def no_token(request: str, _: str) -> Reply:
    return models("tiny") if request.startswith("GET") else (500, b"not yet")


def test_an_engine_that_answers_http_but_never_completes_and_does_nothing_is_ended(tree: Tree) -> None:
    with (
        engine(no_token) as port,
        agent_under_test(
            tree, 0, settings((), 1, recipe="tiny-cpu", stall_seconds=STALL_SECONDS, api_port=port)
        ) as head,
        running(head.agent, LOADING) as (rank, _),
        running_steps(head, lambda agent: make_ready(agent, rank)) as walk,
    ):
        until(lambda: "waiting for the first completion; nothing has moved for" in head.report.message)
        error = walk.ended_by(NotReadyError)
        assert error.cause is Cause.LOAD_STALLED
        assert error.reason.startswith("rank 0 on spark1, loading weights, has stood still for 1 s")
        assert shutdown_on_error(head.agent, None, error) == 12


def test_a_late_head_waits_for_a_worker_that_still_loads_and_says_so_once(tree: Tree, port: int) -> None:
    configured = settings(addresses(2), port, stall_seconds=STALL_SECONDS, ready_seconds=1)
    with node("127.0.0.2", port=port) as worker, agent_under_test(tree, 0, configured) as head:
        head.set_plan("d")
        with running_steps(head, wait_and_join) as walk:
            worker.publish(report(1, plan_digest="d"))
            until(lambda: head.report.epoch)
            report_loading(worker, rank=1, epoch=head.report.epoch)
            assert walk.join() is None
        head.ended.clear()
        with (
            running(head.agent, LOADING) as (rank, _),
            running_steps(head, lambda agent: make_ready(agent, rank)) as walk,
        ):
            until(lambda: count_late_events(head) == 1)
            until(lambda: (head.report.engine.idle_seconds or 0) > 2 * STALL_SECONDS)
            assert not walk.over
            report_loading(worker, 0, rank=1, epoch=head.report.epoch)
            error = walk.ended_by(NotReadyError)
    assert error.reason.startswith("not ready within 1 s: waited for HTTP to answer")
    assert count_late_events(head) == 1


def count_late_events(agent: AgentUnderTest) -> int:
    return sum(line.startswith("engine.readiness.late ") for line in agent.events.lines)


def report_loading(peer: Node, idle_seconds: int | None = None, *, rank: int = 0, epoch: str = "e") -> None:
    """Let it work on its load, or stand still for so long."""
    engine = EngineReport(idle_seconds=idle_seconds, works=idle_seconds is None)
    peer.publish(report(rank, phase=Phase.LOADING, epoch=epoch, plan_digest="d", engine=engine))


@contextmanager
def stalling_worker(tree: Tree, port: int) -> Iterator[tuple[AgentUnderTest, subprocess.Popen[bytes], StepsThread]]:
    """Rank 1 in the head's epoch, whose rank has begun to load and does nothing since."""
    with (
        joined_worker(tree, settings(addresses(2), port, stall_seconds=STALL_SECONDS)) as worker,
        running(worker.agent, LOADING) as (rank, process),
        running_steps(worker, lambda agent: follow_head(agent, rank)) as walk,
    ):
        yield worker, process, walk


def test_a_worker_that_stands_still_waits_for_a_head_that_works_and_names_itself_once_that_waits_too(
    tree: Tree, port: int, head: Node
) -> None:
    with stalling_worker(tree, port) as (worker, _, walk):
        report_loading(head)
        until(lambda: (worker.report.engine.idle_seconds or 0) > 2 * STALL_SECONDS)
        assert not walk.over
        assert "loading weights; nothing has moved for" in worker.report.message
        report_loading(head, STALL_SECONDS)
        error = walk.ended_by(NotReadyError)
    assert error.reason.startswith("rank 1 on spark2, loading weights, has stood still for")


def test_a_worker_with_a_stopped_thread_waits_for_nobody(tree: Tree, port: int, head: Node) -> None:
    with stalling_worker(tree, port) as (worker, process, walk):
        report_loading(head)
        machine, pid = Tree(Path(worker.agent.host.files.root)), process.pid
        machine.process(pid, "VLLM::Worker_TP", state="T")
        text = (machine.root / f"proc/{pid}/stat").read_text()
        machine.file(f"/proc/{pid}/task/{pid}/stat", text)
        machine.file(f"/proc/{pid}/task/{pid}/wchan", "do_signal_stop")
        error = walk.ended_by(NotReadyError)
    assert error.reason.endswith("; its threads: 1 of VLLM::Worker_TP in do_signal_stop")


def test_a_worker_whose_head_serves_no_longer_reports_a_standstill(tree: Tree, port: int, head: Node) -> None:
    with stalling_worker(tree, port) as (worker, _, walk):
        report_loading(head)
        until(lambda: worker.report.engine.idle_seconds)
        head.publish(report(0, phase=Phase.SERVING, epoch="e", plan_digest="d"))
        until(lambda: worker.report.phase is Phase.SERVING)
        assert worker.report.engine.idle_seconds is None
        assert not walk.over
