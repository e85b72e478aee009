"""Fixtures of an agent's tests."""

from collections.abc import Iterator

import pytest
from tests.tree import Tree
from tests.unit.agent.kept_ranks import kept_rank
from tests.unit.agent.left_ranks import left_rank
from tests.unit.agent_runs import World, open_world
from tests.unit.agent_steps import joined_worker
from tests.unit.cluster_nodes import AgentUnderTest, addresses, agent_under_test, alone, settings
from tests.unit.event_log import EventLog
from tests.unit.nodes import Node, node, report

from sparkd.base.config.settings import Supervise


@pytest.fixture
def world() -> Iterator[World]:
    with open_world(World) as world:
        yield world


@pytest.fixture
def log() -> EventLog:
    return EventLog()


@pytest.fixture
def head(port: int) -> Iterator[Node]:
    """Rank 0, calling."""
    with node("127.0.0.1", port=port) as head:
        head.publish(report(0, epoch="e", plan_digest="d"))
        yield head


@pytest.fixture
def worker(tree: Tree, port: int, head: Node) -> Iterator[AgentUnderTest]:
    """Rank 1, in the head's epoch."""
    with joined_worker(tree, settings(addresses(2), port)) as worker:
        yield worker


@pytest.fixture
def lone(tree: Tree) -> Iterator[AgentUnderTest]:
    """A node alone."""
    with agent_under_test(tree, 0, alone()) as node:
        yield node


@pytest.fixture
def planned_worker(tree: Tree, port: int) -> Iterator[AgentUnderTest]:
    """Rank 1 of two, with a plan."""
    with agent_under_test(tree, 1, settings(addresses(2), port)) as agent:
        agent.set_plan("d")
        yield agent


@pytest.fixture
def planned_head(tree: Tree, port: int) -> Iterator[AgentUnderTest]:
    """Rank 0 of three, with a plan."""
    with agent_under_test(tree, 0, settings(addresses(3), port)) as agent:
        agent.set_plan("d")
        yield agent


@pytest.fixture
def workers(port: int) -> Iterator[tuple[Node, Node]]:
    with node("127.0.0.2", port=port) as first, node("127.0.0.3", port=port) as second:
        yield first, second


@pytest.fixture
def started(tree: Tree) -> Iterator[AgentUnderTest]:
    """A head that is about to serve, and for which no time of service is too short."""
    at_once = Supervise.model_construct(peer_timeout_seconds=20, proven_seconds=0)
    configured = alone().model_copy(update={"supervise": at_once})
    with agent_under_test(tree, 0, configured) as node:
        node.set_plan("agreed", **dict(node.agent.plan.shared), **{"image.identity": "i", "weights.w": "5 bytes"})
        node.agent.reporter.update(versions={"kernel": "6.17", "driver": "580"})
        yield node


@pytest.fixture
def left(world: World) -> Iterator[World]:
    """Where an agent has left a rank."""
    with left_rank(world.tree, kept_rank()):
        yield world
