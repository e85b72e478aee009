from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparkd.last_exit import KILLED
from sparkd.launch.ledger import COOLING_SECONDS, PLANS_KEPT, REASON_LIMIT, Failure, Ledger, dump, parse

PLAN = "d1"


def failed(times: int) -> Ledger:
    ledger = Ledger()
    for _ in range(times):
        ledger = ledger.opened(PLAN, "boot").failed(PLAN, Failure("boom", 13))
    return ledger


@pytest.mark.parametrize(("failures", "seconds"), [(0, 0), (1, 5), (2, 15), (3, 60), (4, 300), (5, None), (9, None)])
def test_each_failure_makes_the_next_launch_wait_longer_and_the_sixth_needs_a_person(
    failures: int, seconds: int | None
) -> None:
    assert failed(failures).wait_seconds(PLAN) == seconds


def test_another_plan_begins_at_zero() -> None:
    assert failed(5).wait_seconds("d2") == 0


def test_ten_minutes_of_service_or_a_persons_hand_forgive() -> None:
    assert failed(5).forgiven(PLAN).wait_seconds(PLAN) == 0


def test_an_end_on_request_counts_nothing() -> None:
    assert failed(1).opened(PLAN, "boot").closed() == failed(1)


def test_a_launch_left_open_by_a_killed_agent_counts() -> None:
    assert Ledger().opened(PLAN, "boot").settle("boot").wait_seconds(PLAN) == COOLING_SECONDS[1]


def test_a_launch_left_open_by_a_power_cut_does_not() -> None:
    assert Ledger().opened(PLAN, "boot").settle("next boot") == Ledger()


def test_old_plans_are_forgotten() -> None:
    ledger = Ledger()
    for number in range(PLANS_KEPT + 5):
        ledger = ledger.failed(f"d{number}", Failure("boom"))
    assert len(ledger.failures) == PLANS_KEPT
    assert ledger.wait_seconds(f"d{PLANS_KEPT + 4}") == 5


def test_what_was_written_is_read() -> None:
    ledger = failed(3).opened(PLAN, "boot")
    assert parse(dump(ledger)) == ledger
    assert parse(dump(ledger)).last == {PLAN: Failure("boom", 13)}


@pytest.mark.parametrize("said", [[], {PLAN: "boom"}, {PLAN: {"reason": 3, "code": 1}}, {PLAN: {"reason": "x"}}])
def test_a_failure_that_can_not_be_read_counts_all_the_same(said: object) -> None:
    text = json.dumps({"schema": 1, "failures": {PLAN: 2}, "open": None, "last": said})
    assert parse(text) == Ledger({PLAN: 2})


def test_a_reason_that_somebody_has_written_moves_no_cursor() -> None:
    kept = dump(Ledger().failed(PLAN, Failure("\x1b[2J" + "x" * 5000)))
    assert len(parse(kept).last[PLAN].reason) == REASON_LIMIT
    assert "\x1b" not in parse(kept).last[PLAN].reason


def test_a_ledger_without_reasons_is_read_as_one_with_none() -> None:
    text = '{"schema": 1, "failures": {"d1": 2}, "open": null}'
    assert parse(text) == Ledger({PLAN: 2})


def test_the_last_failure_is_told_and_a_killed_agents_too() -> None:
    ledger = failed(1).failed(PLAN, Failure("memory ran out", 16))
    assert str(ledger.last[PLAN]) == "memory ran out (exit 16)"
    assert str(ledger.opened(PLAN, "boot").settle("boot").last[PLAN]) == KILLED
    assert ledger.forgiven(PLAN).last == {}


@given(
    st.text()
    | st.sampled_from(
        ["", "[]", "[" * 100_000, "{}", '{"schema": 1}', '{"schema": 1, "failures": {"a": "b"}, "open": 3}']
    )
)
def test_a_broken_ledger_counts_as_empty(text: str) -> None:
    assert parse(text) == Ledger()
