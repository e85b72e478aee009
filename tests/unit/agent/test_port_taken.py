"""A port that somebody else took while the engine loaded does not count against the plan."""

from collections.abc import Iterator
from contextlib import contextmanager

from tests.tree import Tree
from tests.unit.cluster_nodes import agent_under_test, alone, last_exit, running, written

from sparkd.agent.daemon.context import Agent
from sparkd.agent.daemon.shutdown import shutdown_on_error
from sparkd.agent.engine.rank import Running
from sparkd.base.config.settings import Engine
from sparkd.base.lib.errors import EngineEndedError
from sparkd.base.state.launch_history import FILE, LaunchHistory

IN_USE = "the engine ended: OSError: [Errno 98] Address already in use"


@contextmanager
def loading(tree: Tree, port: int) -> Iterator[tuple[Agent, Running]]:
    """An engine that loads, on a machine where somebody else listens on its port."""
    configured = alone().model_copy(update={"engine": Engine(recipe="tiny-cpu", args={"port": port})})
    with agent_under_test(tree, 0, configured) as node, running(node.agent) as (rank, _):
        agent, machine = node.agent, Tree(tree.root / "node0")
        machine.file(FILE.path, FILE.encode(LaunchHistory().begin(agent.plan.digest, agent.boot_id)))
        machine.file("/proc/net/tcp", f"   0: 0100007F:{port:04X} 00000000:0000 0A 0:0 00:0 0 0 0 77\n")
        yield agent, rank


def end(agent: Agent, rank: Running, reason: str) -> tuple[str, int]:
    """The cause of an end for this reason, and how many failed launches are counted then."""
    shutdown_on_error(agent, rank, EngineEndedError(reason))
    return last_exit(agent.actions).cause, sum(written(agent.actions, FILE).failures.values())


def test_a_taken_port_is_no_failed_launch(tree: Tree, port: int) -> None:
    with loading(tree, port) as (agent, rank):
        assert end(agent, rank, IN_USE) == ("port-taken", 0)


def test_a_port_that_is_free_at_the_end_was_not_taken(tree: Tree, port: int) -> None:
    with loading(tree, port) as (agent, rank):
        Tree(tree.root / "node0").file("/proc/net/tcp", "\n")
        assert end(agent, rank, IN_USE) == ("engine-ended", 1)


def test_an_engine_that_serves_has_its_port_whatever_a_client_writes(tree: Tree, port: int) -> None:
    with loading(tree, port) as (agent, rank):
        rank.mark_ready()
        assert end(agent, rank, IN_USE) == ("engine-ended", 1)


def test_an_engine_that_ended_for_another_reason_is_a_failed_launch(tree: Tree, port: int) -> None:
    with loading(tree, port) as (agent, rank):
        assert end(agent, rank, "the engine ended: RuntimeError: boom") == ("engine-ended", 1)
