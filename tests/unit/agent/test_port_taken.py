"""A port that somebody else took while the engine loaded does not count against the plan."""

import pytest
from tests.tree import Tree
from tests.unit.cluster_nodes import agent_under_test, alone, last_exit, running, written

from sparkd.agent.daemon.shutdown import shutdown_on_error
from sparkd.base.config.settings import Engine
from sparkd.base.lib.errors import EngineEndedError
from sparkd.base.state.launch_history import FILE, LaunchHistory

IN_USE = "the engine ended: OSError: [Errno 98] Address already in use"


@pytest.mark.parametrize(
    ("reason", "ready", "is_taken", "cause"),
    [
        (IN_USE, False, True, "port-taken"),
        (IN_USE, False, False, "engine-ended"),
        (IN_USE, True, True, "engine-ended"),  # a client's text may say so
        ("the engine ended: RuntimeError: boom", False, True, "engine-ended"),
    ],
)
def test_a_taken_port_is_no_failed_launch(
    tree: Tree, port: int, reason: str, ready: bool, is_taken: bool, cause: str
) -> None:
    configured = alone().model_copy(update={"engine": Engine(recipe="tiny-cpu", args={"port": port})})
    with agent_under_test(tree, 0, configured) as node, running(node.agent) as (rank, _):
        agent, machine = node.agent, Tree(tree.root / "node0")
        machine.file(FILE.path, FILE.encode(LaunchHistory().begin(agent.plan.digest, agent.boot_id)))
        machine.file(
            "/proc/net/tcp", f"   0: 0100007F:{port:04X} 00000000:0000 0A 0:0 00:0 0 0 0 77\n" if is_taken else "\n"
        )
        if ready:
            rank.mark_ready()
        shutdown_on_error(agent, rank, EngineEndedError(reason))
    assert last_exit(agent.actions).cause == cause
    assert sum(written(agent.actions, FILE).failures.values()) == (0 if cause == "port-taken" else 1)
