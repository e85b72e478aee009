"""launch-history.json: which launches count, how long the next one waits, and why the last process ended."""

from datetime import UTC, datetime, timedelta

import pytest
from msgspec.structs import replace

from sparkd.base.lib.errors import Cause
from sparkd.base.state.file import LIMIT_BYTES
from sparkd.base.state.launch_history import (
    BACKOFF_SECONDS,
    END_LENGTH,
    ENDS_KEPT,
    FAULT_LIMIT,
    FILE,
    IMAGES_KEPT,
    KILLED,
    REASON_LIMIT,
    AssertResult,
    End,
    LaunchHistory,
)
from sparkd.base.status.model import RestartReport

PLAN, NOW = "d1", "2026-01-01T00:00:00.000+00:00"
BOOM = End("boom", 13)
EMPTY = LaunchHistory()


def failed(times: int) -> LaunchHistory:
    history = EMPTY
    for _ in range(times):
        history = history.begin(PLAN, "boot").record_failure(PLAN, BOOM).record_end("boot", BOOM)
    return history


@pytest.mark.parametrize(("failures", "seconds"), [(0, 0), (1, 5), (2, 15), (3, 60), (4, 300), (5, None), (9, None)])
def test_each_failure_makes_the_next_launch_wait_longer_and_the_sixth_needs_a_person(
    failures: int, seconds: int | None
) -> None:
    assert failed(failures).wait_seconds(PLAN) == seconds
    assert failed(failures).wait_seconds("d2") == 0


def test_a_plan_that_is_forgiven_starts_at_zero() -> None:
    assert failed(3).reset(PLAN) == replace(EMPTY, last_exit=BOOM)


def test_a_launch_left_open_by_a_killed_agent_counts() -> None:
    killed = EMPTY.record_launch(PLAN, "boot", {}).recover("boot", NOW)
    assert killed.wait_seconds(PLAN) == BACKOFF_SECONDS[1]
    assert killed.last_failure(PLAN) == KILLED
    assert [boot.open for boot in killed.boots] == [False]


def test_a_launch_left_open_by_a_power_cut_does_not_count() -> None:
    cut = EMPTY.record_launch(PLAN, "boot", {}).recover("next boot", NOW)
    assert cut.wait_seconds(PLAN) == 0
    assert cut.open is None
    assert [boot.open for boot in cut.boots] == [True], "its machine ended with it"


def test_old_plans_and_boots_are_forgotten() -> None:
    history = EMPTY
    for number in range(20):
        history = history.record_launch(f"d{number}", f"boot{number}", {}).record_failure(f"d{number}", BOOM)
    assert list(history.failures) == list(history.last) == [f"d{number}" for number in range(4, 20)]
    assert [boot.digest for boot in history.boots] == [f"d{number}" for number in range(12, 20)]


def test_what_was_written_is_read_and_bounded() -> None:
    wide = "\U0001f600" * 5000
    history = EMPTY.record_launch(PLAN, "boot", {f"{number}.{wide}": wide for number in range(5000)}).record_serving(
        "boot"
    )
    for number in range(20):
        history = history.record_failure(f"d{number}", End(wide, 13, wide))
    for number in range(2 * IMAGES_KEPT):
        history = history.record_asserts(str(number), "true", AssertResult(wide[:FAULT_LIMIT], 1.5, NOW))
    assert FILE.decode(FILE.encode(history).encode()) == history
    assert len(FILE.encode(history)) < LIMIT_BYTES, "or the count of failures could not be read with it"


def test_a_reason_from_the_file_is_sanitized() -> None:
    reason = replace(EMPTY, last={PLAN: End("\x1b[2J" + "x" * 5000)}).last_failure(PLAN)
    assert len(reason) == REASON_LIMIT
    assert reason.isprintable()


@pytest.mark.parametrize(
    ("end", "text"),
    [
        (End(KILLED), KILLED),
        (End("port 8000 is taken", 10, cause=Cause.BLOCKED), "port 8000 is taken (exit 10)"),
        (End("", 1), " (exit 1)"),
    ],
)
def test_the_next_process_reports_why_the_last_one_ended(end: End, text: str) -> None:
    assert str(replace(EMPTY, last_exit=end).last_cause) == text


@pytest.mark.parametrize("end", [None, End("stop requested", 0, cause=Cause.STOP_REQUESTED)])
def test_after_a_requested_stop_and_at_first_there_is_no_cause(end: End | None) -> None:
    assert replace(EMPTY, last_exit=end).last_cause is None


NOON = datetime(2026, 1, 2, 12, tzinfo=UTC)


def at(hours_before_noon: float) -> str:
    return (NOON - timedelta(hours=hours_before_noon)).isoformat()


def end_processes(*ends: End) -> LaunchHistory:
    history = EMPTY
    for end in ends:
        history = history.recover("boot", end.at).record_end("boot", end)
    return history


def test_the_ends_of_a_day_are_grouped_by_their_cause() -> None:
    history = end_processes(
        End("old", 13, at=at(30), cause="boom"),
        End("first", 13, at=at(5), cause="boom"),
        End("other", 14, at=at(3), cause="bang"),
        End("last", 13, at=at(2), cause="boom"),
    )
    assert history.restarts(NOON) == (
        RestartReport("bang", 1, at(3), "other"),
        RestartReport("boom", 2, at(2), "last"),
    )


def test_an_end_that_somebody_requested_is_no_restart() -> None:
    assert end_processes(End("stop requested", 0, at=at(4))).restarts(NOON) == ()


def test_a_killed_process_ended_when_the_next_one_began() -> None:
    killed = EMPTY.recover("boot", at(2)).recover("boot", at(1))
    assert killed.restarts(NOON)[-1] == RestartReport(
        Cause.AGENT_KILLED, 2, NOON.isoformat(timespec="milliseconds"), KILLED
    )


def test_the_reason_of_a_restart_is_short() -> None:
    (restart,) = end_processes(End("x" * 999, 13, at=at(1))).restarts(NOON)
    assert restart.reason == "x" * END_LENGTH


def test_many_ends_are_bounded() -> None:
    assert len(end_processes(*[BOOM] * (3 * ENDS_KEPT)).ends) == ENDS_KEPT


def test_a_cause_that_only_a_later_version_knows_is_read() -> None:
    history = replace(EMPTY, last_exit=End("boom", 13, cause="struck-by-lightning"))
    assert FILE.decode(FILE.encode(history).encode()) == history
