"""Durations and ages as people read them, and times as they write them for an option."""

from datetime import timedelta, timezone

import pytest
from tests.unit.node_reports import NOW, ago

from sparkd.base.lib.errors import UsageError
from sparkd.base.lib.times import format_duration, parse_time, seconds_since


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (None, "?"),
        (0.4, "0 s"),
        (59.9, "59 s"),
        (60, "1 min"),
        (3599, "59 min"),
        (3600, "1 h 0 min"),
        (90061, "1 d 1 h"),
    ],
)
def test_a_duration_is_shown_in_two_units_at_most(seconds: float | None, shown: str) -> None:
    assert format_duration(seconds) == shown


@pytest.mark.parametrize(
    ("stamp", "seconds"),
    [
        (ago(12), 12),
        (NOW.astimezone(timezone(timedelta(hours=2))).isoformat(), 0),
        ("2026-01-01T11:59:00", 60),
        pytest.param(ago(-5), 0, id="a clock ahead of ours"),
        ("", None),
        ("yesterday", None),
    ],
)
def test_the_age_of_a_stamp(stamp: str, seconds: float | None) -> None:
    assert seconds_since(stamp, NOW) == seconds


def parse(text: str) -> int:
    return parse_time("--for", text, 60, 7 * 86400)


@pytest.mark.parametrize(
    ("text", "seconds"), [("60s", 60), ("2h", 7200), ("30min", 1800), ("30m", 1800), ("1d", 86400)]
)
def test_a_number_with_a_unit_is_a_time(text: str, seconds: int) -> None:
    assert parse(text) == seconds


@pytest.mark.parametrize("text", ["", "2", "h", "-1h", "1.5h", "2h ", "2H", "\u0662h", "59s", "8d", "99999999s"])
def test_another_form_and_a_time_out_of_bounds_are_refused_with_the_bounds(text: str) -> None:
    with pytest.raises(UsageError, match=r"--for .*needed is 60s to 168h, such as 90s"):
        parse(text)
