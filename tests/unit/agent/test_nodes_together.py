"""Whole groups of agents start in any order, and end together."""

import threading
import time
from contextlib import ExitStack

import pytest
from tests.tree import Tree
from tests.unit.agent_steps import StepsThread, running_steps, wait_and_join
from tests.unit.clock import unstalled
from tests.unit.cluster_nodes import AgentUnderTest, addresses, agent_under_test, settings
from tests.unit.nodes import until

from sparkd.agent.daemon.context import Agent
from sparkd.agent.daemon.shutdown import shutdown_on_error
from sparkd.base.lib.endings import Stage
from sparkd.base.lib.errors import EngineEndedError, ExitCode, PeerLostError, SparkdError
from sparkd.base.lib.main_loop import never
from sparkd.base.status.model import Contact, Phase


def serve(agent: Agent) -> None:
    """A run without an engine, and with a short wait after its last report."""
    try:
        wait_and_join(agent)
        agent.phase.enter(Phase.LAUNCHING)
        agent.phase.enter(Phase.LOADING)
        agent.phase.enter(Phase.SERVING)
        while True:
            agent.loop.wait(5)
    except SparkdError as error:
        agent.phase.enter(Phase.FAILED, str(error))
        agent.loop.endings.enter(Stage.END)
        agent.loop.wait_until(never, 0.5)
        raise


@pytest.mark.parametrize("order", [(0, 1, 2, 3), (3, 1, 2, 0)])
def test_four_nodes_start_in_any_order_and_end_together_with_one_cause(
    tree: Tree, port: int, order: tuple[int, ...]
) -> None:
    configured = settings(addresses(4), port)
    with ExitStack() as stack:
        agents: dict[int, AgentUnderTest] = {}
        walks: dict[int, StepsThread] = {}
        for rank in order:
            agents[rank] = stack.enter_context(agent_under_test(tree, rank, configured))
            agents[rank].set_plan("d")
            walks[rank] = stack.enter_context(running_steps(agents[rank], serve))
            time.sleep(0.05)
        until(lambda: all(agent.report.phase is Phase.SERVING for agent in agents.values()))
        assert {agent.report.epoch for agent in agents.values()} == {agents[0].agent.rank_id}

        began = unstalled()
        walks[3].stop()
        agents[3].ended.clear()
        error = EngineEndedError("the engine ended: RuntimeError: boom")
        shutdown = threading.Thread(target=shutdown_on_error, args=(agents[3].agent, None, error), daemon=True)
        shutdown.start()
        for rank in (0, 1, 2):
            until(lambda of=rank: agents[of].report.phase is Phase.FAILED)  # type: ignore[misc]  # bound now
        assert unstalled() - began < 2
        assert shutdown.is_alive()  # its last report can be read for a while
        for rank in (0, 1, 2):
            lost = walks[rank].ended_by(PeerLostError)
            assert lost.code is ExitCode.PEER_LOST
            assert "rank 3 on spark4 (127.0.0.4) failed: the engine ended: RuntimeError: boom" in lost.reason
            assert lost.reason.startswith("rank 0 on spark1" if rank else "rank 3 on spark4")
        shutdown.join(10)


def test_a_node_whose_agent_does_not_come_back_ends_all_others(tree: Tree, port: int) -> None:
    configured = settings(addresses(3), port, agent_return_seconds=6)
    with ExitStack() as stack:
        agents = [stack.enter_context(agent_under_test(tree, rank, configured)) for rank in range(3)]
        for agent in agents:
            agent.set_plan("d")
        walks = [stack.enter_context(running_steps(agent, serve)) for agent in agents]
        until(lambda: all(agent.report.phase is Phase.SERVING for agent in agents))
        walks[2].stop()
        agents[2].agent.loop.close()
        until(lambda: agents[0].agent.monitor.trouble, 3)
        assert "the agent of rank 2 on spark3 (127.0.0.3) is away" in agents[0].agent.monitor.trouble
        assert all(agent.report.phase is Phase.SERVING for agent in agents[:2])
        assert until(lambda: all(agent.report.phase is Phase.FAILED for agent in agents[:2])) < 8
        for walk in walks[:2]:
            error = walk.ended_by(PeerLostError)
            assert "rank 2 on spark3 (127.0.0.3) is gone: 127.0.0.3 refuses connections" in error.reason
        assert [peer.contact for peer in agents[0].report.peers] == [Contact.ANSWERS, Contact.REFUSED]
        changes = [line for line in agents[0].events.lines if line.startswith("cluster.contact.changed")]
        assert changes[-1].startswith("cluster.contact.changed node=spark3 (127.0.0.3) contact=refused said=")
