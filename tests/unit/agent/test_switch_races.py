"""Somebody chooses again while a step is taken."""

import pytest
from msgspec.structs import replace
from tests.unit.agent.switched_nodes import chosen, read_switch, run_try, wait_for_end, write_switch
from tests.unit.cluster_nodes import AgentUnderTest, MemoryActions

from sparkd.agent.actions.files import compare_and_swap
from sparkd.agent.daemon.switch_start import begin_switch
from sparkd.agent.daemon.switching import SwitchRequested
from sparkd.base.state.file import Content, StateFile
from sparkd.base.state.switch import FILE, Stage, Switch


class ActionsInRace(MemoryActions):
    """Somebody chooses `other` right before or right after the next write."""

    def __init__(self, node: AgentUnderTest, other: Switch, *, when: str) -> None:
        super().__init__(node.agent.host, node.agent.loop, "in-race")
        self._others, self._when = [other], when

    def compare_and_swap(self, file: StateFile[Content], before: Content | None, after: Content | None) -> bool:
        self._choose("before")
        done = super().compare_and_swap(file, before, after)
        self._choose("after")
        return done

    def _choose(self, now: str) -> None:
        if now == self._when and self._others:
            compare_and_swap(self._host.files, FILE, FILE.read(self._host.files), self._others.pop())


def later_choice(node: AgentUnderTest, first: Switch) -> Switch:
    return replace(first, stage=Stage.DRAINING, to=chosen(node, "another"), chosen_at="2026-02-02")


def test_a_plan_that_somebody_chose_during_a_try_is_not_overwritten(lone: AgentUnderTest) -> None:
    run_try(lone)
    other = write_switch(lone, Stage.DRAINING, chosen_at="2026-02-02")
    lone.agent.switching.put_in_force()
    assert read_switch(lone) == other


def test_a_plan_that_somebody_chooses_right_before_a_step_is_written_stays(lone: AgentUnderTest) -> None:
    run_try(lone)
    other = later_choice(lone, write_switch(lone, Stage.TRYING, 1))
    lone.remake(actions=ActionsInRace(lone, other, when="before")).switching.put_in_force()
    assert read_switch(lone) == other


def test_a_plan_that_somebody_chooses_right_before_the_first_step_is_taken_instead(lone: AgentUnderTest) -> None:
    other, agent = later_choice(lone, write_switch(lone, Stage.DRAINING)), lone.agent
    actions = ActionsInRace(lone, other, when="before")
    begun, _ = begin_switch(agent.context.configured, agent.host, actions, agent.events)
    assert begun == read_switch(lone) == replace(other, stage=Stage.TRYING, tries=1)


def test_a_plan_that_somebody_chooses_right_after_a_step_is_seen(lone: AgentUnderTest) -> None:
    run_try(lone)
    other = later_choice(lone, write_switch(lone, Stage.TRYING, 1))
    agent = lone.remake(actions=ActionsInRace(lone, other, when="after"))
    agent.switching.put_in_force()
    with pytest.raises(SwitchRequested):
        wait_for_end(agent.switching, lone)


def test_a_plan_that_somebody_chooses_right_after_the_first_step_is_seen(lone: AgentUnderTest) -> None:
    other, agent = later_choice(lone, write_switch(lone, Stage.DRAINING)), lone.agent
    actions = ActionsInRace(lone, other, when="after")
    begun, stamp = begin_switch(agent.context.configured, agent.host, actions, agent.events)
    agent = lone.remake(context=replace(agent.context, switch=begun), switch_seen=stamp)
    with pytest.raises(SwitchRequested):
        wait_for_end(agent.switching, lone)
