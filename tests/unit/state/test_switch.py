"""The switch between two plans is a pure table: whatever ends a process, it ends in one of the two."""

import itertools
from datetime import UTC, datetime, timedelta

import pytest
from msgspec.structs import replace
from tests.unit.known_good_entries import RECIPE, SETTINGS
from tests.unit.verdicts import present

from sparkd.base.state.switch import FILE, MOST_BACK, TRIES, Chosen, Event, Stage, Switch, step

NEW, OLD, RECENT = (
    Chosen(RECIPE.model_copy(update={"name": name}), SETTINGS.engine) for name in ("new", "old", "recent")
)
LATER = "2030-01-01T00:00:00+00:00"
TIMED = replace(NEW, until=LATER)


def switch(stage: Stage, tries: int = 0, to: Chosen | None = NEW, back: tuple[Chosen, ...] = (OLD,)) -> Switch:
    return Switch("f", stage, to, back, tries, 60, "2026-01-01")


DRAINING, RETURNING = switch(Stage.DRAINING), switch(Stage.RETURNING)
FIRST, LAST = switch(Stage.TRYING, 1), switch(Stage.TRYING, TRIES)
ON_NEW, ON_OLD = switch(Stage.IN_FORCE, back=()), switch(Stage.IN_FORCE, to=OLD, back=())
TABLE = (
    (DRAINING, Event.STARTED, FIRST),
    *((DRAINING, event, DRAINING) for event in (Event.WORKS, Event.FAILED, Event.LEFT, Event.EXPIRED)),
    (FIRST, Event.STARTED, LAST),
    (FIRST, Event.WORKS, ON_NEW),
    (FIRST, Event.FAILED, ON_OLD),
    (FIRST, Event.LEFT, switch(Stage.TRYING, 0)),
    (FIRST, Event.EXPIRED, ON_OLD),
    (LAST, Event.STARTED, ON_OLD),
    (LAST, Event.WORKS, ON_NEW),
    (LAST, Event.FAILED, ON_OLD),
    (LAST, Event.LEFT, FIRST),
    (LAST, Event.EXPIRED, ON_OLD),
    *((ON_NEW, event, ON_NEW) for event in (Event.STARTED, Event.WORKS, Event.FAILED, Event.LEFT)),
    (ON_NEW, Event.EXPIRED, replace(ON_NEW, stage=Stage.RETURNING)),
    (RETURNING, Event.STARTED, ON_OLD),
    *((RETURNING, event, RETURNING) for event in (Event.WORKS, Event.FAILED, Event.LEFT, Event.EXPIRED)),
)


@pytest.mark.parametrize(("before", "event", "after"), TABLE)
def test_each_event_leads_from_each_stage_to_one_other_or_changes_nothing(
    before: Switch, event: Event, after: Switch
) -> None:
    assert step(before, event) == after


def test_the_table_has_each_event_in_each_stage() -> None:
    assert {(before.stage, event) for before, event, _ in TABLE} == set(itertools.product(Stage, Event))


def test_back_to_what_is_configured_leaves_no_file() -> None:
    for before, event in (
        (switch(Stage.TRYING, 1, back=()), Event.FAILED),
        (switch(Stage.TRYING, TRIES, back=()), Event.STARTED),
        (switch(Stage.RETURNING, back=()), Event.STARTED),
        (switch(Stage.TRYING, 1, to=None), Event.WORKS),
    ):
        assert step(before, event) is None


def test_what_is_configured_is_tried_too_and_left_where_it_fails() -> None:
    assert step(switch(Stage.TRYING, 1, to=None), Event.FAILED) == ON_OLD


def test_a_plan_with_an_end_goes_back_to_the_one_before_it() -> None:
    in_force = step(switch(Stage.TRYING, 1, to=TIMED), Event.WORKS)
    assert in_force == switch(Stage.IN_FORCE, to=TIMED)
    now = datetime.fromisoformat(LATER) + timedelta(seconds=1)
    assert not in_force.expired(now - timedelta(seconds=2))
    assert in_force.expired(now)
    leaving = present(step(in_force, Event.EXPIRED))
    assert leaving.chosen == OLD
    assert not leaving.expired(now), "once"
    assert step(leaving, Event.STARTED) == ON_OLD


@pytest.mark.parametrize("event", [Event.FAILED, Event.EXPIRED])
def test_each_plan_below_a_timed_one_comes_back_in_turn(event: Event) -> None:
    """A rollback is in force, then a plan for two hours, then one that fails: the rollback is there after the two."""
    back = step(switch(Stage.TRYING, 1, to=RECENT, back=(TIMED, OLD)), event)
    assert back == switch(Stage.IN_FORCE, to=TIMED, back=(OLD,))
    leaving = present(step(back, Event.EXPIRED))
    assert step(leaving, Event.STARTED) == ON_OLD


@pytest.mark.parametrize(("until", "below"), [(LATER, (TIMED, OLD)), ("", ())])
def test_a_plan_in_force_keeps_the_plans_below_it_where_it_has_an_end(until: str, below: tuple[Chosen, ...]) -> None:
    tried = replace(RECENT, until=until)
    in_force = step(switch(Stage.TRYING, 1, to=tried, back=(TIMED, OLD)), Event.WORKS)
    assert in_force == switch(Stage.IN_FORCE, to=tried, back=below)


def test_no_more_plans_are_kept_than_the_file_may_have() -> None:
    most = switch(Stage.TRYING, 1, back=(NEW,) * MOST_BACK)
    assert FILE.decode(FILE.encode(most).encode()) == most
    with pytest.raises(ValueError, match=f"length <= {MOST_BACK}"):
        FILE.decode(FILE.encode(replace(most, back=(NEW,) * (MOST_BACK + 1))).encode())


def test_a_stamp_that_is_none_is_over() -> None:
    in_force = switch(Stage.IN_FORCE, to=replace(NEW, until="rubbish"))
    assert in_force.expired(datetime.min.replace(tzinfo=UTC))


def test_cut_at_any_moment_it_ends_in_one_of_the_two_plans() -> None:
    """A cut is no event: the next process begins with STARTED. In between, anything may be written, or nothing."""
    between = (None, Event.WORKS, Event.FAILED, Event.LEFT)
    for events in itertools.product(between, repeat=5):
        now: Switch | None = DRAINING
        for event in events:
            assert now is not None
            now = present(step(now, Event.STARTED))
            assert now.chosen in (NEW, OLD)
            now = step(now, event) if event else now
        if Event.LEFT not in events:  # a person who stops it each time wants no verdict
            assert now in (ON_NEW, ON_OLD), events


def test_the_next_process_launches_what_the_stage_says() -> None:
    launched = [switch(stage).chosen for stage in (Stage.DRAINING, Stage.TRYING, Stage.IN_FORCE, Stage.RETURNING)]
    assert launched == [NEW, NEW, NEW, OLD]


def test_findings_name_what_is_tried_and_what_is_in_force() -> None:
    (tried,), (in_force,) = FIRST.findings, ON_NEW.findings
    assert tried.reason == "recipe new is being tried; if it fails, sparkd goes back to recipe old"
    assert in_force.reason == "instead of what is configured, recipe new is in force"
    assert in_force.hint.endswith("sudo sparkd use --end")
    assert switch(Stage.DRAINING, to=None).findings == ()
