"""Durations and ages as people read them."""

from datetime import timedelta, timezone

import pytest
from tests.unit.node_reports import NOW, ago

from sparkd.base.lib.times import format_duration, seconds_since


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
