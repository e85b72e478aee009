"""The RDMA devices of a plan may change before its launch."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace
from tests.tree import Tree
from tests.unit.cluster_nodes import addresses, agent_under_test, alone, settings

from sparkd.agent.daemon.context import Agent
from sparkd.agent.daemon.rdma import check_hcas, read_rdma
from sparkd.base.config.settings import Fabric
from sparkd.base.lib.errors import BlockedError, OutdatedPlanError

FIRST, BOTH = ("rocep1s0f0",), ("rocep1s0f0", "roceP2p1s0f0")


@pytest.fixture
def agent(tree: Tree) -> Iterator[Agent]:
    """The second device was not up yet when its run began."""
    with agent_under_test(tree, 0, alone()) as node:
        plan = node.agent.plan
        shared = (*plan.shared, ("env.NCCL_IB_HCA", "{node.hcas}"))
        planned = replace(plan, node=replace(plan.node, hcas=FIRST), shared=shared)
        yield replace(node.agent, context=replace(node.agent.context, plan=planned))


def test_a_second_device_that_came_up_later_blocks_the_launch(agent: Agent) -> None:
    with pytest.raises(BlockedError, match=r"rocep1s0f0,roceP2p1s0f0 now, and were rocep1s0f0 when"):
        check_hcas(agent, BOTH)


def test_devices_that_came_after_the_plan_was_made_without_any_block_the_launch(agent: Agent) -> None:
    plan_without_devices = replace(agent.plan, node=replace(agent.plan.node, hcas=()))
    with pytest.raises(OutdatedPlanError, match=r"are rocep1s0f0 now, and there were none when this run began"):
        check_hcas(replace(agent, context=replace(agent.context, plan=plan_without_devices)), FIRST)


@pytest.mark.parametrize("devices", [FIRST, ()], ids=["the same", "unreadable"])
def test_devices_that_are_unchanged_or_unreadable_hold_up_no_launch(agent: Agent, devices: tuple[str, ...]) -> None:
    check_hcas(agent, devices)


def test_devices_named_in_the_settings_are_used_as_named(agent: Agent) -> None:
    named = agent.settings.model_copy(update={"fabric": Fabric(hcas=FIRST)})
    check_hcas(replace(agent, settings=named), BOTH)


def test_a_launch_that_names_no_devices_uses_any(agent: Agent) -> None:
    context = replace(agent.context, plan=replace(agent.plan, shared=()))
    check_hcas(replace(agent, context=context), BOTH)


def test_devices_are_those_of_the_interface_that_has_the_address_now(tree: Tree, port: int) -> None:
    with agent_under_test(tree, 0, settings(addresses(2), port)) as node:
        machine, planned = Tree(Path(node.agent.host.files.root)), node.agent.plan.node.interface
        for name in (planned, "moved0"):
            machine.folder(f"/sys/class/net/{name}")
            machine.file(f"/sys/class/infiniband/rxe_{name}/parent", f"{name}\n")
        assert read_rdma(node.agent)[0] == (f"rxe_{planned}",)
        routes = (machine.root / "proc/net/route").read_text()
        machine.file("/proc/net/route", routes.replace(planned, "moved0"))
        assert read_rdma(node.agent)[0] == ("rxe_moved0",)
        named = node.agent.settings.model_copy(update={"fabric": Fabric(interface=planned)})
        assert read_rdma(replace(node.agent, settings=named))[0] == (f"rxe_{planned}",)
