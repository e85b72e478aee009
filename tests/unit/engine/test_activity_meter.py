"""What a serving engine does, by its counters."""

import math

import pytest
from msgspec.structs import replace
from tests.unit.verdicts import present

from sparkd.agent.engine.activity import MOST_TOKENS, WINDOW_SECONDS, ActivityMeter
from sparkd.base.status.bounds import bounded
from sparkd.base.status.figures import ActivityReport
from sparkd.base.vllm.counters import Counters

IDLE = Counters(running=0, waiting=0, prompt_tokens=1000, generation_tokens=500, iterations=50)
LATER = replace(
    IDLE,
    running=2,
    waiting=1,
    prompt_tokens=1500,
    generation_tokens=600,
    kv_usage=0.25,
    prefix_queries=500,
    prefix_hits=400,
    drafted=80,
    accepted=60,
)


def test_rates_are_of_the_last_seconds_and_shares_of_the_last_minutes() -> None:
    meter = ActivityMeter()
    assert meter.advance(100, IDLE) == ActivityReport(0, 0, 0.0, 0.0, 0.0)
    assert meter.advance(105, LATER) == ActivityReport(2, 1, 100.0, 20.0, 0.25, 0.8, 0.75)
    still = meter.advance(110, replace(LATER, running=0, waiting=0))
    assert still == ActivityReport(0, 0, 0.0, 0.0, 0.25, 0.8, 0.75)
    assert meter.advance(110 + WINDOW_SECONDS + 1, LATER) == ActivityReport(2, 1, 0.0, 0.0, 0.25, None, None)


def test_the_time_to_first_token_is_that_of_the_last_minutes_requests() -> None:
    meter = ActivityMeter()
    times = []
    for at, tokens, seconds in ((100, 0, 0.0), (105, 4, 2.0), (110, 4, 2.0), (150, 6, 8.0), (250, 6, 8.0)):
        activity = present(meter.advance(at, replace(IDLE, first_tokens=tokens, first_token_seconds=seconds)))
        times.append(activity.first_token_seconds)
    assert times == [None, 0.5, 0.5, 1.333, None]


def test_a_probe_shortly_after_another_one_keeps_the_rates() -> None:
    meter = ActivityMeter()
    meter.advance(100, IDLE)
    meter.advance(105, LATER)
    activity = present(meter.advance(105.2, replace(LATER, generation_tokens=700)))
    assert activity.output_tokens_per_second == 20.0


@pytest.mark.parametrize(
    "read",
    [None, replace(LATER, generation_tokens=math.inf), replace(LATER, running=math.nan), replace(LATER, waiting=-1)],
)
def test_without_an_answer_or_with_numbers_of_no_engine_nothing_is_known(read: Counters | None) -> None:
    meter = ActivityMeter()
    meter.advance(100, IDLE)
    assert meter.advance(105, read) is None
    assert meter.advance(110, LATER) == ActivityReport(2, 1, 50.0, 10.0, 0.25, 0.8, 0.75)


def test_an_engine_whose_counters_begin_again_is_another_one() -> None:
    meter = ActivityMeter()
    meter.advance(100, LATER)
    assert meter.advance(105, IDLE) == ActivityReport(0, 0, 0.0, 0.0, 0.0)


def test_however_large_the_numbers_other_nodes_accept_the_report() -> None:
    meter = ActivityMeter()
    meter.advance(100, IDLE)
    huge = replace(LATER, running=1e300, prompt_tokens=1e308, kv_usage=99, prefix_hits=1e300)
    activity = present(meter.advance(105, replace(huge, first_tokens=1, first_token_seconds=1e300)))
    assert bounded(activity) == activity
    assert activity.input_tokens_per_second == MOST_TOKENS
    assert activity.kv_cache_use == 1.0
    assert activity.prefix_hit_rate == 1.0
