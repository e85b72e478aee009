"""Fixtures of an agent's tests."""

from collections.abc import Iterator

import pytest
from tests.tree import Tree
from tests.unit.agent_runs import World, open_world
from tests.unit.agent_steps import running_steps, wait_and_join
from tests.unit.cluster_nodes import AgentUnderTest, addresses, agent_under_test, settings
from tests.unit.nodes import Node, node, report


@pytest.fixture
def world() -> Iterator[World]:
    with open_world(World) as world:
        yield world


@pytest.fixture
def head(port: int) -> Iterator[Node]:
    """Rank 0, calling."""
    with node("127.0.0.1", port=port) as head:
        head.publish(report(0, epoch="e", plan_digest="d"))
        yield head


@pytest.fixture
def worker(tree: Tree, port: int, head: Node) -> Iterator[AgentUnderTest]:
    """Rank 1, in the head's epoch."""
    with agent_under_test(tree, 1, settings(addresses(2), port)) as worker:
        worker.set_plan("d")
        with running_steps(worker, wait_and_join) as walk:
            assert walk.join() is None
        worker.ended.clear()
        yield worker
