"""What a new process makes of the choice that it finds: one step further, or back."""

from pathlib import Path

import pytest
from msgspec.structs import replace
from tests.tree import Tree
from tests.unit.agent.switched_nodes import read_switch, run_try, write_switch
from tests.unit.cluster_nodes import AgentUnderTest, FullDisk, alone, last_exit
from tests.unit.known_good_entries import known_good_entry
from tests.unit.limits import files_left
from tests.unit.switches import LATER
from tests.unit.verdicts import present

from sparkd.agent.daemon.startup import launch
from sparkd.agent.daemon.switch_start import begin_switch, stamp_switch
from sparkd.base.cluster import membership
from sparkd.base.config import Settings
from sparkd.base.config.settings import Engine
from sparkd.base.lib.errors import AwaitedError, Cause, OutdatedPlanError
from sparkd.base.state import launch_history
from sparkd.base.state.launch_history import End, LaunchHistory
from sparkd.base.state.switch import FILE, NO_REASON, TRIES, Chosen, Stage, Switch, make_rollback


def begin(node: AgentUnderTest, config: Settings | None = None) -> Switch | None:
    agent = node.agent
    return begin_switch(config or agent.context.configured, agent.host, agent.actions, agent.events)[0]


def test_the_next_process_tries_what_was_chosen_and_counts_it(lone: AgentUnderTest) -> None:
    before = write_switch(lone, Stage.DRAINING)
    assert begin(lone) == read_switch(lone) == replace(before, stage=Stage.TRYING, tries=1)


@pytest.mark.parametrize(
    ("at", "last"), [("2001", ""), (LATER, " of its own, the last that was recorded: dockerd has restarted")]
)
def test_after_tries_without_a_verdict_the_node_goes_back_and_logs_it(lone: AgentUnderTest, at: str, last: str) -> None:
    history = LaunchHistory(last_exit=End("dockerd has restarted", 13, at=at))
    Tree(Path(lone.agent.host.files.root)).file(launch_history.FILE.path, launch_history.FILE.encode(history))
    write_switch(lone, Stage.TRYING, TRIES)
    assert begin(lone) is None
    assert read_switch(lone) is None
    end = last_exit(lone.agent.actions)
    assert end.cause == Cause.SWITCH_FAILED
    assert end.reason == f"back to what is configured, recipe new did not come up: {NO_REASON}{last}"
    assert lone.events.lines[-1].startswith("switch.plan.returned")


def test_a_plan_that_cannot_be_made_any_more_is_left_at_once(lone: AgentUnderTest) -> None:
    recipe = lone.agent.context.recipe
    for_two = recipe.model_copy(update={"nodes": recipe.nodes.model_copy(update={"min": 2, "max": 2})})
    for stage in (Stage.DRAINING, Stage.TRYING):
        lone.events.lines.clear()
        write_switch(lone, stage, 1, to=Chosen(for_two, lone.agent.context.settings.engine))
        assert begin(lone) is None
        assert "needs 2 node(s)" in lone.events.lines[-1]


def test_a_plan_whose_time_ended_while_the_node_was_off_is_left(lone: AgentUnderTest) -> None:
    for stage in (Stage.IN_FORCE, Stage.TRYING):
        write_switch(lone, stage, until="2001-01-01T00:00:00+00:00")
        assert begin(lone) is None
        assert read_switch(lone) is None
    assert last_exit(lone.agent.actions).reason.endswith(f": {NO_REASON} before its time was over")


def test_a_choice_that_can_t_be_read_now_is_awaited(lone: AgentUnderTest) -> None:
    write_switch(lone, Stage.IN_FORCE)
    with files_left(0):
        assert begin(lone) is None
        with pytest.raises(AwaitedError, match="Too many open files"):
            membership.current_switch(lone.agent.context.configured, lone.agent.host)


def test_a_changed_configuration_ends_every_stage(lone: AgentUnderTest) -> None:
    other = alone().model_copy(update={"engine": alone().engine.model_copy(update={"image": "other:1"})})
    for stage in Stage:
        write_switch(lone, stage)
        assert begin(lone, other) is None
    lone.agent.switching.settle()
    assert lone.events.lines == [], "what is configured here is still what it replaces"


def test_a_choice_holds_while_the_recipe_that_it_replaces_may_come_by_a_late_mount(lone: AgentUnderTest) -> None:
    configured, host = Settings(engine=Engine(recipe="tiny-cpu")), lone.agent.host
    switch = write_switch(lone, Stage.IN_FORCE, replaces=membership.fingerprint_config(configured, host))
    folder = Path(host.files.root, "etc/sparkd/recipes")
    folder.parent.mkdir(parents=True, exist_ok=True)
    folder.symlink_to(folder.with_name("share"))
    with pytest.raises(AwaitedError, match="recipes: is a link"):
        membership.fingerprint_config(configured, host)
    assert membership.current_switch(configured, host) == switch


def test_a_rollback_in_force_is_logged(lone: AgentUnderTest) -> None:
    rollback = present(make_rollback(known_good_entry(), "", ""))
    lone.remake(context=replace(lone.agent.context, switch=rollback)).switching.settle()
    assert lone.events.lines[-1].startswith(
        f"rollback.plan.applied plan={lone.agent.plan.digest[:12]} recipe=tiny-cpu "
    )


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (FILE.encode(present(make_rollback(known_good_entry(), "", ""))), "the configuration has changed"),
        ("rubbish", "can't be read"),
    ],
    ids=["over", "unreadable"],
)
def test_a_rollback_that_is_over_or_unreadable_is_removed(lone: AgentUnderTest, text: str, reason: str) -> None:
    Tree(Path(lone.agent.host.files.root)).file(FILE.path, text)
    lone.agent.switching.settle()
    (line,) = lone.events.lines
    assert line.startswith("rollback.plan.removed")
    assert reason in line
    assert not lone.agent.host.files.exists(FILE.path)


def test_a_rollback_that_is_chosen_while_an_agent_starts_is_for_the_next_one(lone: AgentUnderTest) -> None:
    agent = lone.agent
    rollback = make_rollback(
        known_good_entry(), membership.fingerprint_config(agent.context.configured, agent.host), ""
    )
    Tree(Path(agent.host.files.root)).file(FILE.path, FILE.encode(present(rollback)))
    agent.switching.settle()
    assert read_switch(lone) == rollback
    assert lone.events.lines == []


def test_a_process_does_not_take_its_own_step_for_a_choice(lone: AgentUnderTest) -> None:
    agent = lone.agent
    for stage in (Stage.DRAINING, Stage.TRYING, Stage.RETURNING):
        write_switch(lone, stage, TRIES)
        _, stamp = begin_switch(agent.context.configured, agent.host, agent.actions, agent.events)
        assert stamp == stamp_switch(agent.host)


def test_no_plan_is_launched_without_its_try_where_a_full_disk_kept_that_from_being_written(
    lone: AgentUnderTest,
) -> None:
    agent = lone.agent
    write_switch(lone, Stage.DRAINING)
    full = FullDisk(agent.host, agent.loop, "full")
    stamp = begin_switch(agent.context.configured, agent.host, full, agent.events)[1]
    (line,) = (line for line in lone.events.lines if line.startswith("state.write.failed"))
    assert line.startswith("state.write.failed file=switch.json reason=No space left on device hint=df -h"), line
    node = membership.resolve_context(agent.context.configured, None, agent.host)
    agent = lone.remake(context=node, switch_seen=stamp)
    agent.switching.settle()
    with pytest.raises(OutdatedPlanError, match=r"switch.json could not be written"):
        launch(agent)
    run_try(lone)
    lone.agent.switching.raise_if_unwritten()
