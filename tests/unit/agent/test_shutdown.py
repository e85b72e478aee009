"""A shutdown gives the rank a bounded time to end, and docker a bounded time to answer."""

import signal
import threading
import time
from pathlib import Path

import pytest
from msgspec.structs import replace
from tests.tree import Tree
from tests.unit.clock import unstalled
from tests.unit.cluster_nodes import AgentUnderTest, agent_under_test, alone, running, until_with
from tests.unit.nodes import Node, report, until

from sparkd.agent.daemon.shutdown import FAILED_GRACE_SECONDS, RELEASE_SECONDS, shutdown_on_error, shutdown_on_request
from sparkd.base.config.settings import Engine
from sparkd.base.host import Host
from sparkd.base.host.docker import AWAY, DockerFacts
from sparkd.base.lib.endings import StopRequested
from sparkd.base.lib.errors import EngineEndedError
from sparkd.base.status.model import Phase


def test_a_rank_that_ignores_sigterm_gets_no_more_than_its_grace_period_after_an_error(
    tree: Tree, tmp_path: Path
) -> None:
    configured = alone().model_copy(update={"engine": Engine(recipe="tiny-cpu", stop_grace_seconds=1)})
    ignores_sigterm = ("sh", "-c", f"trap '' TERM; touch {tmp_path}/deaf; while :; do sleep 0.1; done")
    with agent_under_test(tree, 0, configured) as node, running(node.agent, command=ignores_sigterm) as (rank, process):
        until((tmp_path / "deaf").exists)
        began = time.monotonic()
        shutdown_on_error(node.agent, rank, EngineEndedError("it makes no tokens"))
        took = time.monotonic() - began
        assert process.wait() == -signal.SIGKILL
    assert 1 <= took < (1 + FAILED_GRACE_SECONDS) / 2


def test_the_node_is_failed_and_its_rank_ended_before_docker_has_been_waited_for(tree: Tree) -> None:
    hangs, ended_after, hints = threading.Event(), list[float](), list[str]()

    def docker() -> DockerFacts:
        hangs.wait(30)
        return AWAY

    with agent_under_test(tree, 0, alone()) as node, running(node.agent) as (rank, process):
        agent = replace(node.agent, host=Host(node.agent.host.files.root, docker))
        began = time.monotonic()

        def note_end() -> None:
            process.wait(10)
            ended_after.append(time.monotonic() - began)
            hints.append(node.report.hint)
            assert node.report.phase is Phase.FAILED
            assert node.report.cause == "", "the cause is still looked for"

        thread = threading.Thread(target=note_end)
        thread.start()
        shutdown_on_error(agent, rank, EngineEndedError("it makes no tokens", "make tea"))
        took = time.monotonic() - began
        hangs.set()
        thread.join()
        assert node.report.phase is Phase.FAILED
        assert node.report.cause == "docker-hung"
    assert hints == ["make tea"]
    assert ended_after[0] < agent.pace.last_look_seconds / 2 < agent.pace.last_look_seconds <= took


@pytest.mark.parametrize(
    ("phase", "drains", "killed"),
    [(Phase.FAILED, False, True), (Phase.SERVING, False, False), (Phase.STOPPING, True, False)],
)
def test_a_worker_that_is_stopped_ends_its_rank_at_once_when_its_head_is_out_of_service(
    worker: AgentUnderTest, head: Node, phase: Phase, drains: bool, killed: bool
) -> None:
    """A headless rank takes ten seconds to end by itself, and none outlives another for longer than two."""
    slow_to_end = ("sh", "-c", "trap 'sleep 1; exit 7' TERM; echo; while :; do sleep 0.1; done")
    with running(worker.agent, command=slow_to_end) as (rank, process):
        time.sleep(0.3)  # for the trap to be set
        head.publish(report(0, phase=phase, draining=drains, epoch="e", plan_digest="d"))
        until_with(lambda: phase_of_head(worker) is phase, worker)
        began = unstalled()
        shutdown_on_request(worker.agent, rank, StopRequested())
        took = unstalled() - began
        assert (process.wait() == -signal.SIGKILL) is killed
        assert took < RELEASE_SECONDS + 7 if not killed else took < 1.5


def phase_of_head(worker: AgentUnderTest) -> Phase:
    (head,) = worker.agent.monitor.statuses()
    return head.report.phase if head.report else Phase.STOPPED
