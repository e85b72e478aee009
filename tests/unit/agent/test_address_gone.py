"""An engine that ended since its node's own address was gone has that cause, and counts as a failed launch."""

import pytest
from msgspec.structs import replace
from tests.tree import Tree
from tests.unit.cluster_nodes import BRIEF, AgentUnderTest, last_exit, running, written

from sparkd.agent.daemon.shutdown import shutdown_on_error
from sparkd.base.lib.errors import EngineEndedError, MemoryGuardError, SparkdError
from sparkd.base.state.launch_history import FILE, LaunchHistory

NO_SUCH_ADDRESS = "the engine ended: OSError: [Errno 99] Cannot assign requested address (addr='tcp://{}:29501')"
BOOM = EngineEndedError("the engine ended: RuntimeError: boom")
LOCAL_ADDRESS = "           |-- {}\n              /32 host LOCAL\n"


@pytest.mark.parametrize(
    ("error", "ready", "has_address", "cause"),
    [
        (EngineEndedError(NO_SUCH_ADDRESS.format("127.0.0.2")), False, True, "own-address-gone"),
        # While it serves, a client's text may say so.
        (EngineEndedError(NO_SUCH_ADDRESS.format("127.0.0.2")), True, True, "engine-ended"),
        (EngineEndedError(NO_SUCH_ADDRESS.format("127.0.0.20")), False, True, "engine-ended"),  # of another node
        (BOOM, False, True, "engine-ended"),
        (BOOM, True, False, "own-address-gone"),
        (MemoryGuardError("memory ran out"), True, False, "memory-guard"),
    ],
)
def test_an_address_that_was_gone_is_the_cause(
    tree: Tree, worker: AgentUnderTest, error: SparkdError, ready: bool, has_address: bool, cause: str
) -> None:
    agent, machine = replace(worker.agent, pace=BRIEF), Tree(tree.root / "node1")
    machine.file(FILE.path, FILE.encode(LaunchHistory().begin(agent.plan.digest, agent.boot_id)))
    machine.file("/proc/net/fib_trie", LOCAL_ADDRESS.format("127.0.0.2" if has_address else "127.0.0.3"))
    with running(agent) as (rank, _):
        if ready:
            rank.mark_ready()
        shutdown_on_error(agent, rank, error)
    assert last_exit(agent.actions).cause == cause
    assert sum(written(agent.actions, FILE).failures.values()) == 1, (
        "else an image whose log says so would be launched for ever"
    )
