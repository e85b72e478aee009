"""A running agent sees another choice, and leaves for it."""

import time
from pathlib import Path

import pytest
from msgspec.structs import replace
from tests.tree import Tree
from tests.unit.agent.switched_nodes import Clocked, chosen, read_stage, read_switch, run_by, wait_for_end, write_switch
from tests.unit.cluster_nodes import AgentUnderTest, last_exit
from tests.unit.known_good_entries import known_good_entry
from tests.unit.limits import files_left
from tests.unit.nodes import until as until_true

from sparkd.agent.actions.files import compare_and_swap
from sparkd.agent.daemon.shutdown import shutdown_on_request
from sparkd.agent.daemon.switching import SwitchRequested
from sparkd.base.lib.errors import OutdatedPlanError
from sparkd.base.state.switch import CONFIGURED, FILE, Stage, make_rollback
from sparkd.base.status.model import Phase

LONG_AGO, FAR_AHEAD = "2001-01-01T00:00:00+00:00", "2999-01-01T00:00:00+00:00"


def test_a_running_agent_leaves_for_a_chosen_plan_once(lone: AgentUnderTest) -> None:
    agent = lone.agent
    agent.switching.watch()
    write_switch(lone, Stage.DRAINING)
    with pytest.raises(SwitchRequested, match="leaving for recipe new") as request:
        wait_for_end(agent.switching, lone)
    shutdown_on_request(agent, None, request.value)
    assert agent.store.read_launches().last_exit is None, "kept in memory by this test"
    end = last_exit(lone.agent.actions)
    assert end.reason == "leaving for recipe new"
    assert end.code == 0
    assert end.cause == "switch"
    write_switch(lone, Stage.DRAINING, drain_seconds=1)
    agent.loop.wait(0)


def test_a_blocked_node_starts_again_for_a_second_rollback(lone: AgentUnderTest) -> None:
    first = make_rollback(known_good_entry(), "", "")
    time.sleep(0.002)
    second = make_rollback(known_good_entry(), "", "")
    assert first is not None
    assert second is not None
    agent = run_by(lone, write_switch(lone, Stage.IN_FORCE, chosen_at=first.chosen_at))
    agent.phase.enter(Phase.BLOCKED, "no")
    wait_for_end(agent.switching, lone, 0.1)
    write_switch(lone, Stage.IN_FORCE, to=chosen(lone, "another"), chosen_at=second.chosen_at)
    with pytest.raises(OutdatedPlanError):
        wait_for_end(agent.switching, lone)


def test_a_choice_that_can_t_be_read_now_is_no_other_one(lone: AgentUnderTest) -> None:
    agent = run_by(lone, write_switch(lone, Stage.IN_FORCE))
    agent.phase.enter(Phase.BLOCKED, "no")
    write_switch(lone, Stage.IN_FORCE)
    with files_left(0):
        wait_for_end(agent.switching, lone, 0.1)
    assert lone.events.lines[-1].startswith("state.read.failed reason=/var/lib/sparkd/switch.json can't be read: Too")


def test_a_plan_whose_time_is_over_is_left_and_more_time_keeps_it(lone: AgentUnderTest) -> None:
    agent = run_by(lone, write_switch(lone, Stage.IN_FORCE, until=FAR_AHEAD))
    wait_for_end(agent.switching, lone, 0.1)
    for until, shown in (("2998-01-01T00:00:00+00:00", "recipe new until 2998-01-01 00:00 UTC"), ("", "recipe new")):
        write_switch(lone, Stage.IN_FORCE, until=until)
        wait_for_end(agent.switching, lone, 1.5)
        assert [finding.reason for finding in lone.report.findings] == [f"instead of {CONFIGURED}, {shown} is in force"]
    write_switch(lone, Stage.IN_FORCE, until=LONG_AGO)
    with pytest.raises(SwitchRequested, match=f"leaving for {CONFIGURED}"):
        wait_for_end(agent.switching, lone)
    assert read_stage(lone) is Stage.RETURNING


@pytest.mark.parametrize("until", [FAR_AHEAD, ""])
def test_an_agent_that_takes_a_rank_over_knows_the_end_of_its_plan_by_the_file(
    lone: AgentUnderTest, until: str
) -> None:
    kept = write_switch(lone, Stage.IN_FORCE, until=LONG_AGO)
    longer = write_switch(lone, Stage.IN_FORCE, until=until)  # while the agent before it ran
    agent = lone.remake(context=replace(lone.agent.context, switch=kept), switch_seen=object())
    wait_for_end(agent.switching, lone, 0.5)
    assert read_switch(lone) == agent.switching.switch == longer


def test_a_choice_without_a_notice_is_seen_within_a_minute(lone: AgentUnderTest) -> None:
    """Its writer was killed before the notice, or /run is full."""
    clocked = Clocked(lone, write_switch(lone, Stage.IN_FORCE))
    files = lone.agent.host.files
    chosen_by_hand = replace(write_switch(lone, Stage.DRAINING), chosen_at="2026-02-02")
    compare_and_swap(
        files, FILE, FILE.read(files), replace(chosen_by_hand, stage=Stage.IN_FORCE, chosen_at="2026-01-01")
    )
    wait_for_end(clocked.switching, lone, 0.1)
    Tree(Path(files.root)).file(FILE.path, FILE.encode(chosen_by_hand))
    wait_for_end(clocked.switching, lone, 0.1)
    clocked.now += 61
    with pytest.raises(SwitchRequested):
        wait_for_end(clocked.switching, lone)


def test_a_choice_whose_step_a_full_disk_has_kept_from_being_written_is_no_other_one(lone: AgentUnderTest) -> None:
    clocked = Clocked(lone, write_switch(lone, Stage.DRAINING))
    lone.agent.phase.enter(Phase.BLOCKED, "the disk is full")
    clocked.now += 61
    wait_for_end(clocked.switching, lone, 0.2)


def test_a_choice_that_cannot_be_read_is_reported(lone: AgentUnderTest) -> None:
    clocked = Clocked(lone, write_switch(lone, Stage.IN_FORCE))
    Tree(Path(lone.agent.host.files.root)).file(FILE.path, "{")
    clocked.now += 61

    def reports() -> list[str]:
        wait_for_end(clocked.switching, lone, 0.02)
        return [line.partition(" ")[0] for line in lone.events.lines if "switch.json" in line]

    until_true(reports)
    assert reports() == ["state.read.failed"]
