"""What is sent to warm an engine, and what counts as compiled. Whether that warms it: tests/integration."""

import pytest
from msgspec.structs import replace

from sparkd.base.status.figures import EngineReport
from sparkd.base.vllm.warm_up import Compiled, add_up
from sparkd.base.vllm.warm_up_steps import ANSWER_SPREAD, Limits, make_steps, read_limits, sizes

LIMITS = Limits(batch_tokens=2048, requests=6, context_tokens=1024)
each_pass = pytest.mark.parametrize("number", [1, 2, 3])


@each_pass
def test_prompts_are_not_empty_and_reach_no_further_than_the_context(number: int) -> None:
    lengths = [length for step in make_steps(LIMITS, number) for length in step.prompts]
    assert min(lengths) >= 1
    assert max(lengths) <= LIMITS.context_tokens


@each_pass
def test_beside_the_longest_prompt_of_a_step_its_longest_answer_fits(number: int) -> None:
    for step in make_steps(LIMITS, number):
        spread = ANSWER_SPREAD - 1 if len(step.prompts) > 1 else 0
        assert max(step.prompts) + step.answer_tokens + spread <= LIMITS.context_tokens


@each_pass
def test_requests_are_sent_alone_and_in_batches_up_to_the_most_at_once(number: int) -> None:
    assert {len(step.prompts) for step in make_steps(LIMITS, number)} == {1, 2, 3, 4, 5, 6}


@each_pass
def test_some_steps_are_sampled_and_some_are_greedy(number: int) -> None:
    assert {any(step.sampled) for step in make_steps(LIMITS, number)} == {True, False}


def test_each_pass_sends_other_lengths() -> None:
    assert make_steps(LIMITS, 1) != make_steps(LIMITS, 2)


def test_the_first_pass_sends_sizes_and_one_below_each_up_to_a_whole_batch() -> None:
    steps = make_steps(replace(LIMITS, context_tokens=4096), 1)
    lengths = {step.prompts[0] for step in steps if len(step.prompts) == 1}
    assert {127, 128, 1023, 1024, 2047, 2048} < lengths


def test_sizes_end_with_the_most_and_have_each_of_few_tiles() -> None:
    assert max(sizes(2048)) == 2048
    assert set(range(64, 1025, 64)) < set(sizes(2048))


def test_each_data_parallel_engine_gets_its_share() -> None:
    limits = Limits(batch_tokens=64, requests=4, context_tokens=1024)
    of_one, of_two = make_steps(limits, 1), make_steps(replace(limits, engines=2), 1)
    assert [2 * len(step.prompts) for step in of_one] == [len(step.prompts) for step in of_two]


def test_without_flags_an_engine_takes_8192_tokens_and_256_requests() -> None:
    assert read_limits((), 100) == Limits(batch_tokens=8192, requests=256, context_tokens=100)


def test_flags_set_the_limits() -> None:
    words = ("--max-num-seqs", "4", "--max-num-batched-tokens=2k", "--data-parallel-size", "2")
    assert read_limits(words, 100) == Limits(batch_tokens=2000, requests=4, context_tokens=100, engines=2)


def test_no_more_requests_are_sent_at_once_than_256() -> None:
    assert read_limits(("--max-num-seqs", "4096"), 100).requests == 256


def test_tools_are_sent_where_the_engine_takes_them() -> None:
    """Without --enable-auto-tool-choice vLLM takes none."""
    words = ("--tool-call-parser", "hermes")
    assert not read_limits(words, 100).tools
    assert read_limits((*words, "--enable-auto-tool-choice"), 100).tools


def test_what_is_compiled_on_any_node_counts() -> None:
    head = EngineReport(kernels_compiled=2, compilers=1)
    worker = EngineReport(kernels_compiled=3)
    assert add_up([head, worker], files=7) == Compiled(kernels=5, files=7, compilers=1, works=False)


def test_the_cluster_works_while_any_node_does() -> None:
    assert add_up([EngineReport(works=True), EngineReport()], files=0).works
    assert not add_up([EngineReport(), EngineReport()], files=0).works
