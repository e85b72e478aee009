"""Times as people write them for an option."""

import pytest

from sparkd.base.lib.errors import UsageError
from sparkd.base.lib.times import parse_time


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
