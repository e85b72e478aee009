"""Figures of a measurement: medians and spreads, aggregate rates, ratios to the recipe's figures."""

import pytest

from sparkd.base.vllm.counters import Drafts
from sparkd.base.vllm.streaming import Streamed
from sparkd.tools.measure.figures import (
    DECODE,
    Reply,
    Spread,
    acceptance_by_position,
    compare_depth,
    expected_figure,
    find_level,
    output_rate,
    ratio,
    spread,
    stream_rate,
    summarise,
)


def answer(begun: float, first: float, each: float, tokens: int, per_event: int = 1) -> Streamed:
    times = tuple(begun + first + number * each for number in range(tokens // per_event))
    return Streamed(begun, times, times[-1], 100, tokens)


def test_a_batch_is_all_its_tokens_over_the_time_from_first_request_to_last_token() -> None:
    batch: list[Reply] = [answer(10, 1, 0.1, 11), answer(10, 2, 0.1, 21), "HTTP 500"]
    assert output_rate(batch) == pytest.approx(32 / 4)
    assert output_rate(["x"]) == 0


def test_a_stream_is_measured_from_its_first_token_on() -> None:
    assert stream_rate(answer(0, 5, 0.05, 21)) == pytest.approx(20)
    assert stream_rate(Streamed(0, (1.0,), 1.0, 5, 1)) == 0


@pytest.mark.parametrize(("values", "median", "low", "high"), [([3.0], 3, 3, 3), ([1.0, 2.0, 9.0], 2, 1.1, 8.3)])
def test_a_spread_is_the_median_with_the_5th_and_95th_percentile(
    values: list[float], median: float, low: float, high: float
) -> None:
    measured = spread(values)
    assert measured is not None
    assert (measured.median, measured.low, measured.high) == pytest.approx((median, low, high))


def test_no_value_has_no_spread() -> None:
    assert spread([]) is None


def test_a_level_counts_failures_apart_and_keeps_the_first_reason() -> None:
    good = [answer(0, 0.5, 0.1, 11), answer(0, 0.7, 0.1, 11)]
    level = summarise(2, "static", [good, [*good[:1], "HTTP 503 draining"]])
    assert level.requests == 4
    assert level.failed == 1
    assert level.fault == "HTTP 503 draining"
    assert level.first_token_seconds is not None
    assert level.first_token_seconds.median == pytest.approx(0.5)
    assert level.inter_token_seconds is not None
    assert level.inter_token_seconds.median == pytest.approx(0.1)
    nothing = summarise(1, "static", [["refused"]])
    assert nothing.failed == 1
    assert nothing.output_tokens_per_second is None
    assert nothing.first_token_seconds is None


def test_a_drafters_events_of_several_tokens_count_by_the_servers_number() -> None:
    assert stream_rate(answer(0, 1, 0.1, 22, per_event=2)) == pytest.approx(21)


@pytest.mark.parametrize(
    ("before", "after", "shares"),
    [
        (Drafts(100, (80, 40)), Drafts(200, (160, 90)), (0.8, 0.5)),
        (None, Drafts(10, (5,)), ()),
        (Drafts(100, (80,)), Drafts(100, (80,)), ()),
        (None, None, ()),
        (Drafts(100, (80,)), None, ()),
    ],
)
def test_acceptance_is_of_the_time_between(
    before: Drafts | None, after: Drafts | None, shares: tuple[float, ...]
) -> None:
    assert acceptance_by_position(before, after) == pytest.approx(shares)


def test_a_depth_compares_the_same_prompt_with_and_without_the_prefix_cache() -> None:
    depth = compare_depth(answer(0, 4, 0.1, 11), answer(0, 0.2, 0.1, 1))
    assert (depth.prefill_tokens_per_second, depth.repeated_seconds) == pytest.approx((25, 0.2))


@pytest.mark.parametrize(
    ("figures", "figure"),
    [({"4": 65.8}, 65.8), ({"4": 66}, 66), ({"8": 1}, None), ({"4": "fast"}, None), ({"4": -1}, None), (7, None),
     ({"4": True}, None), ({"4": float("inf")}, None), (None, None)],
)  # fmt: skip
def test_the_recipes_figure_is_used_where_it_is_one(figures: object, figure: float | None) -> None:
    assert expected_figure({DECODE: figures}, DECODE, 4) == figure
    assert expected_figure({}, DECODE, 4) is None


def test_ratios_are_to_what_was_measured_alike() -> None:
    static, staggered = (summarise(1, arrivals, [[answer(0, 1, 1, 10)]]) for arrivals in ("static", "staggered"))
    assert find_level([staggered, static], static) is static
    assert find_level([staggered], static) is None
    assert ratio(Spread(50, 0, 0), 40) == 1.25
    assert ratio(None, 40) is None
    assert ratio(Spread(50, 0, 0), None) is None
