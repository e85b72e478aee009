"""Whether a series of figures has become worse: beyond the spread of those before, and since when."""

import pytest

from sparkd.base.state.decline import find_decline

STEADY = [37.2, 36.9, 37.4, 37.1]


@pytest.mark.parametrize(
    ("values", "since"),
    [
        ([], None),
        ([37.0, 37.0, 20.0], None),  # two are too few to know what is usual
        ([37.0, 37.0, 37.0, 20.0], 3),
        ([*STEADY, 36.8], None),
        ([*STEADY, 33.7], None),  # less than a tenth
        ([*STEADY, 33.0], 4),
        ([*STEADY, 20.0, 37.0], None),  # it came back
        ([*STEADY, 20.0, 37.0, 20.0], None),  # as it did before
        ([*STEADY, 30.0, 37.0, 20.0], 6),
        ([*STEADY, 30.0, 29.0, 31.0], 4),
        ([*STEADY, *[20.0] * 12], 4),  # also when the slow ones are the most
        ([37.0, 20.0, 36.0, 21.0, 37.0, 20.0], None),  # its own spread is as large
        ([*STEADY, 60.0], None),
        ([37.0, 34.0, 40.0, 37.0, 35.0, 39.0, 28.5], None),  # less than three deviations of 2.97
        ([37.0, 34.0, 40.0, 37.0, 35.0, 39.0, 27.5], 6),
        ([20.0, 20.0, 20.0, 37.0, 37.0, 37.0, 21.0], None),
        ([0.0, 0.0, 0.0, 0.0], None),
    ],
)
def test_rates_decline_where_all_later_ones_are_lower_than_is_usual(values: list[float], since: int | None) -> None:
    assert find_decline(values, more_is_better=True) == since


@pytest.mark.parametrize(
    ("values", "since"),
    [([90, 92, 91, 150], 3), ([90, 92, 91, 60], None), ([90, 92, 91, 97], None), ([90, 200, 91, 190, 150], None)],
)
def test_durations_decline_where_all_later_ones_are_longer_than_is_usual(
    values: list[float], since: int | None
) -> None:
    assert find_decline(values, more_is_better=False) == since
