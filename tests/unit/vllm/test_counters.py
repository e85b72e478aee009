"""The counters of an engine's /metrics, and its drafts."""

import pytest
from msgspec.structs import replace
from tests.unit.engine.recorded_logs import LOGS
from tests.unit.verdicts import present

from sparkd.base.vllm.counters import Counters, Drafts, parse_counters, parse_drafts

PAGE = (LOGS / "metrics.txt").read_bytes()


def test_counters_are_read_off_a_real_page() -> None:
    counters = present(parse_counters(PAGE))
    assert counters == Counters(
        running=0.0,
        waiting=0.0,
        prompt_tokens=6.0,
        generation_tokens=32.0,
        iterations=32.0,
        prefix_queries=6.0,
        first_tokens=2.0,
        first_token_seconds=counters.first_token_seconds,
    )
    assert 0 < counters.first_token_seconds < 60


def test_an_engine_is_busy_while_a_request_runs_or_waits() -> None:
    idle = present(parse_counters(PAGE))
    assert not idle.busy
    assert replace(idle, running=1.0).busy
    assert replace(idle, waiting=1.0).busy


def test_a_served_name_may_have_braces() -> None:
    assert parse_counters(PAGE.replace(b'model_name="tiny"', b'model_name="{tiny}"')) == parse_counters(PAGE)


def test_a_request_that_waits_for_its_client_does_not_make_the_engine_busy() -> None:
    """As a session of /v1/realtime whose microphone is silent; vLLM 0.26 to 0.33 defer it, and do nothing."""
    waits = PAGE.replace(b'requests_waiting{engine="0",model_name="tiny"} 0.0', b'requests_waiting{engine="0"} 2.0')
    reason = b'vllm:num_requests_waiting_by_reason{engine="0",model_name="tiny",reason="deferred"} '
    assert present(parse_counters(waits)).busy
    assert present(parse_counters(waits.replace(reason + b"0.0", reason + b"1.0"))).busy
    deferred = present(parse_counters(waits.replace(reason + b"0.0", reason + b"2.0")))
    assert (deferred.waiting, deferred.deferred, deferred.busy) == (2, 2, False)


def test_an_engine_that_a_client_has_put_to_sleep_says_so() -> None:
    assert not present(parse_counters(PAGE)).asleep
    state = b'vllm:engine_sleep_state{engine="0",model_name="tiny",sleep_state="awake"} '
    assert present(parse_counters(PAGE.replace(state + b"1.0", state + b"0.0"))).asleep


def test_a_page_that_lacks_a_counter_has_none() -> None:
    page = PAGE.replace(b"vllm:iteration_tokens_total_count", b"vllm:other")
    assert parse_counters(page) is None


@pytest.mark.parametrize("name", [b"vllm:kv_cache_usage_perc", b"vllm:gpu_cache_usage_perc"])
@pytest.mark.parametrize("value", [0.25, 2.6e-05])
def test_a_kv_cache_that_fills_is_progress_where_no_token_is_counted(name: bytes, value: float) -> None:
    usage = b'kv_cache_usage_perc{engine="0",model_name="tiny"} '
    after = present(parse_counters(PAGE.replace(b"vllm:" + usage + b"0.0", name + b'{engine="0"} %r' % value)))
    assert after.kv_usage == value
    assert after.work != present(parse_counters(PAGE)).work


def test_counters_of_several_engines_are_summed() -> None:
    counters = present(parse_counters(PAGE + PAGE.replace(b'engine="0"', b'engine="1"')))
    assert counters.generation_tokens == 64.0


DRAFTS = b"""\
# HELP vllm:spec_decode_num_drafts_total Number of spec decoding drafts.
# TYPE vllm:spec_decode_num_drafts_total counter
vllm:spec_decode_num_drafts_total{engine="0",model_name="m"} 100.0
vllm:spec_decode_num_drafts_created{engine="0",model_name="m"} 1.79e+09
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",model_name="m",position="0"} 81.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",model_name="m",position="1"} 5.1e+01
vllm:spec_decode_num_accepted_tokens_per_pos_created{engine="0",model_name="m",position="0"} 1.79e+09
"""


def test_drafts_are_counted_by_position() -> None:
    assert parse_drafts(DRAFTS) == Drafts(100, (81, 51))


def test_drafts_of_several_engines_are_summed() -> None:
    assert parse_drafts(DRAFTS + DRAFTS) == Drafts(200, (162, 102))


def test_an_engine_without_a_drafter_has_none() -> None:
    assert parse_drafts(PAGE) is None


def test_a_position_beyond_any_drafter_is_left_out() -> None:
    assert parse_drafts(DRAFTS.replace(b'position="1"', b'position="999"')) == Drafts(100, (81,))
