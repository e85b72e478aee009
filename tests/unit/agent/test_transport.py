"""All ranks use RDMA, or TCP where one node has none."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from msgspec.structs import replace
from tests.tree import Tree
from tests.unit.agent_steps import StepsThread, await_message, running_steps, wait_and_join
from tests.unit.cluster_nodes import AgentUnderTest
from tests.unit.nodes import Node, node, report, until

from sparkd.agent.daemon.context import Pace
from sparkd.base.lib.errors import OutdatedPlanError, SparkdError


@pytest.fixture
def transport_of_all(planned_head: AgentUnderTest, workers: tuple[Node, Node]) -> Callable[[str, str, str], str]:
    """The transport for which the head calls, by those of the three nodes."""

    def call(head: str, first: str, second: str) -> str:
        planned_head.agent.reporter.update(transport=head)
        for rank, (worker, transport) in enumerate(zip(workers, (first, second), strict=True), 1):
            worker.publish(report(rank, plan_digest="d", transport=transport))
        with running_steps(planned_head, wait_and_join):
            until(lambda: planned_head.report.epoch != "")
            return planned_head.report.transport

    return call


@pytest.mark.parametrize(("head", "second", "without_rdma"), [("rdma", "tcp", "spark3"), ("tcp", "rdma", "spark1")])
def test_all_ranks_use_tcp_where_one_node_has_no_rdma(
    planned_head: AgentUnderTest,
    transport_of_all: Callable[[str, str, str], str],
    head: str,
    second: str,
    without_rdma: str,
) -> None:
    assert transport_of_all(head, "rdma", second) == "tcp"
    (line,) = [line for line in planned_head.events.lines if "fabric.tcp.chosen" in line]
    assert f"without_rdma=['{without_rdma}']" in line


@pytest.mark.parametrize("transport", ["rdma", ""], ids=["rdma", "unknown"])
def test_what_all_nodes_have_is_used_and_not_logged(
    planned_head: AgentUnderTest, transport_of_all: Callable[[str, str, str], str], transport: str
) -> None:
    assert transport_of_all(transport, transport, transport) == transport
    assert not any("fabric.tcp.chosen" in line for line in planned_head.events.lines)


def join_call(worker: AgentUnderTest, port: int, own: str, heads: str) -> SparkdError | None:
    """Let a worker join a call for the head's transport; its error."""
    worker.agent.reporter.update(transport=own)
    with node("127.0.0.1", port=port) as head, running_steps(worker, wait_and_join) as walk:
        head.publish(report(0, epoch="e", plan_digest="d", transport=heads))
        return walk.join()


@pytest.mark.parametrize(("own", "heads"), [("rdma", "tcp"), ("tcp", "tcp"), ("rdma", "rdma")])
def test_a_worker_uses_the_transport_that_its_head_has_chosen(
    planned_worker: AgentUnderTest, port: int, own: str, heads: str
) -> None:
    assert join_call(planned_worker, port, own, heads) is None
    assert planned_worker.report.transport == heads
    assert planned_worker.report.epoch == "e"


def test_a_worker_whose_rdma_has_gone_since_the_call_starts_again(planned_worker: AgentUnderTest, port: int) -> None:
    assert isinstance(join_call(planned_worker, port, "tcp", "rdma"), OutdatedPlanError)
    assert planned_worker.report.epoch == ""


@contextmanager
def waiting_with_device(worker: AgentUnderTest, state: str, *shared: tuple[str, str]) -> Iterator[StepsThread]:
    """A worker that waits for its head, and whose fabric gets an RDMA device then. `shared`: of its plan."""
    plan, machine = worker.agent.plan, Tree(Path(worker.agent.host.files.root))
    container = plan.container.model_copy(update={"gpus": "all", "privileged": True})
    plan = replace(plan, container=container, shared=(*plan.shared, *shared))
    worker.remake(context=replace(worker.agent.context, plan=plan), pace=Pace(rdma_seconds=0.1))
    worker.agent.reporter.update(transport="tcp")
    with running_steps(worker, wait_and_join) as walk:
        await_message(worker, "waiting for 127.0.0.1")
        machine.folder("/sys/class/net/bond0")
        machine.file("/sys/class/infiniband/rxe0/parent", "bond0\n")
        machine.file("/sys/class/infiniband/rxe0/ports/1/link_layer", "Ethernet\n")
        machine.file("/sys/class/infiniband/rxe0/ports/1/state", f"{state}\n")
        yield walk


def test_rdma_that_comes_up_while_a_node_waits_is_used(planned_worker: AgentUnderTest) -> None:
    with waiting_with_device(planned_worker, "4: ACTIVE"):
        until(lambda: planned_worker.report.transport == "rdma")


def test_a_plan_that_names_devices_is_made_again_once_there_are_some(planned_worker: AgentUnderTest) -> None:
    with waiting_with_device(planned_worker, "4: ACTIVE", ("env.NCCL_IB_HCA", "{node.hcas}")) as walk:
        assert isinstance(walk.join(), OutdatedPlanError)
    assert planned_worker.report.transport == "tcp"


def test_a_device_that_is_down_is_no_rdma(planned_worker: AgentUnderTest) -> None:
    with waiting_with_device(planned_worker, "1: DOWN"):
        time.sleep(0.5)
        assert planned_worker.report.transport == "tcp"
