"""The counters of an engine's /metrics."""

import pytest
from tests.unit.engine.recorded_logs import LOGS
from tests.unit.verdicts import present

from sparkd.base.vllm.counters import parse_counters

PAGE = (LOGS / "metrics.txt").read_bytes()


def test_counters_are_read_off_a_real_page() -> None:
    counters = present(parse_counters(PAGE))
    assert counters.work == (6.0, 32.0, 32.0, 0.0, 0.0, 0.0)
    assert (counters.prefix_queries, counters.prefix_hits, counters.drafted) == (6.0, 0.0, 0.0)
    assert counters.first_tokens == 2
    assert 0 < counters.first_token_seconds < 60
    assert not counters.busy


def test_a_served_name_may_have_braces() -> None:
    assert parse_counters(PAGE.replace(b'model_name="tiny"', b'model_name="{tiny}"')) == parse_counters(PAGE)


def test_a_page_that_lacks_a_counter_has_none() -> None:
    page = PAGE.replace(b"vllm:iteration_tokens_total_count", b"vllm:other")
    assert parse_counters(page) is None


@pytest.mark.parametrize("name", [b"vllm:kv_cache_usage_perc", b"vllm:gpu_cache_usage_perc"])
@pytest.mark.parametrize("value", [0.25, 2.6e-05])
def test_a_kv_cache_that_fills_is_progress_where_no_token_is_counted(name: bytes, value: float) -> None:
    before = parse_counters(PAGE)
    usage = b'kv_cache_usage_perc{engine="0",model_name="tiny"} '
    after = parse_counters(PAGE.replace(b"vllm:" + usage + b"0.0", name + b'{engine="0"} %r' % value))
    assert before is not None
    assert after is not None
    assert (after.kv_usage, after.work != before.work) == (value, True)


def test_counters_of_several_engines_are_summed() -> None:
    counters = present(parse_counters(PAGE + PAGE.replace(b'engine="0"', b'engine="1"')))
    assert counters.generation_tokens == 64.0
