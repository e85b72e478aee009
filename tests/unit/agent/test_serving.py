"""The head attends its engine from readiness on."""

from tests.tree import Tree
from tests.unit.agent_steps import running_steps
from tests.unit.cluster_nodes import addresses, agent_under_test, running, settings
from tests.unit.nodes import until

from sparkd.agent.daemon.serving import serve
from sparkd.base.config.settings import Supervise
from sparkd.base.status.model import Phase


def test_an_api_whose_address_the_node_has_lost_is_degraded_says_what_to_do_and_proves_no_plan(
    tree: Tree, port: int
) -> None:
    lost = "255.255.255.255"  # to which the kernel makes no connection
    proven_at_once = {"supervise": Supervise.model_construct(proven_seconds=0)}
    configured = settings(addresses(1), port, recipe="tiny-cpu", api_host=lost).model_copy(update=proven_at_once)
    with agent_under_test(tree, 0, configured) as head, running(head.agent) as (rank, _):
        with running_steps(head, lambda agent: serve(agent, rank)):
            until(lambda: head.report.phase is Phase.DEGRADED)
        assert head.report.message == (
            f"the head no longer has {lost}, on which its API listens; where DHCP gave another one: change args.host, "
            "then sudo systemctl restart sparkd-head"
        )
        assert not head.agent.proving.proven
