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


def test_a_plan_that_somebody_chose_during_a_try_is_not_overwritten(lone: AgentUnderTest) -> None:
    run_try(lone)
    other = write_switch(lone, Stage.DRAINING, chosen_at="2026-02-02")
    lone.agent.switching.put_in_force()
    assert read_switch(lone) == other


class Overtaken(MemoryActions):
    """Somebody chooses again between each look at the file and the first write."""

    other: Switch | None = None

    def compare_and_swap(self, file: StateFile[Content], before: Content | None, after: Content | None) -> bool:
        if self.other is not None:
            compare_and_swap(self._host.files, FILE, FILE.read(self._host.files), self.other)
            self.other = None
        return super().compare_and_swap(file, before, after)


def test_a_plan_that_somebody_chooses_while_a_step_is_written_stays(lone: AgentUnderTest) -> None:
    actions = Overtaken(lone.agent.host, lone.agent.loop, "overtaken")
    run_try(lone)
    agent = lone.remake(actions=actions)
    actions.other = replace(write_switch(lone, Stage.TRYING, 1), stage=Stage.DRAINING, chosen_at="2026-02-02")
    other = actions.other
    agent.switching.put_in_force()
    assert read_switch(lone) == other
    write_switch(lone, Stage.DRAINING)
    actions.other = replace(other, to=chosen(lone, "another"))
    begun, _ = begin_switch(agent.context.configured, agent.host, actions, agent.events)
    assert begun == read_switch(lone) == replace(other, stage=Stage.TRYING, tries=1, to=chosen(lone, "another"))


class Followed(MemoryActions):
    """Somebody chooses again right after each write."""

    other: Switch | None = None

    def compare_and_swap(self, file: StateFile[Content], before: Content | None, after: Content | None) -> bool:
        done = super().compare_and_swap(file, before, after)
        if self.other is not None:
            compare_and_swap(self._host.files, FILE, FILE.read(self._host.files), self.other)
        return done


def test_a_plan_that_somebody_chooses_right_after_a_step_is_seen(lone: AgentUnderTest) -> None:
    actions = Followed(lone.agent.host, lone.agent.loop, "followed")
    run_try(lone)
    agent = lone.remake(actions=actions)
    actions.other = replace(write_switch(lone, Stage.TRYING, 1), stage=Stage.DRAINING, chosen_at="2026-02-02")
    agent.switching.put_in_force()
    with pytest.raises(SwitchRequested):
        wait_for_end(agent.switching, lone)
    write_switch(lone, Stage.DRAINING)
    begun, stamp = begin_switch(agent.context.configured, agent.host, actions, agent.events)
    agent = lone.remake(context=replace(agent.context, switch=begun), switch_seen=stamp)
    with pytest.raises(SwitchRequested):
        wait_for_end(agent.switching, lone)
