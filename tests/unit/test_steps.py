"""What a launch was planned with may have changed until it begins."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from msgspec.structs import replace
from tests.tree import Tree
from tests.unit.cluster_nodes import alone, life

from sparkd.agent import Agent
from sparkd.errors import BlockedError
from sparkd.settings.model import Fabric
from sparkd.steps import as_planned

FIRST, BOTH = ("rocep1s0f0",), ("rocep1s0f0", "roceP2p1s0f0")


@pytest.fixture
def agent(tree: Tree) -> Iterator[Agent]:
    """Its twin was not up yet when its life began."""
    with life(tree, 0, alone()) as made:
        plan = made.agent.plan
        script = f"{plan.script}\nexport NCCL_IB_HCA=rocep1s0f0\n"
        planned = replace(plan, node=replace(plan.node, hcas=FIRST), script=script)
        made.agent.context = replace(made.agent.context, plan=planned)
        yield made.agent


def test_a_twin_that_has_come_up_since_is_launched_with(agent: Agent) -> None:
    with pytest.raises(BlockedError, match=r"rocep1s0f0,roceP2p1s0f0 now, and were rocep1s0f0 when"):
        as_planned(agent, BOTH)


@pytest.mark.parametrize("found", [FIRST, ()], ids=["the same", "can't be told"])
def test_devices_that_are_as_they_were_or_can_not_be_told_hold_nobody_up(agent: Agent, found: tuple[str, ...]) -> None:
    as_planned(agent, found)


def test_devices_that_a_person_has_named_are_used_as_named(agent: Agent) -> None:
    agent.settings = agent.settings.model_copy(update={"fabric": Fabric(hcas=FIRST)})
    as_planned(agent, BOTH)


def test_a_launch_that_names_no_devices_takes_what_there_is(agent: Agent) -> None:
    agent.context = replace(agent.context, plan=replace(agent.plan, script="exec vllm\n"))
    as_planned(agent, BOTH)
