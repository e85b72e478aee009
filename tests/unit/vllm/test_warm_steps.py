"""What is sent to warm an engine, and what counts as compiled. Whether that warms it: tests/integration."""

from sparkd.base.vllm.warm_up import Compiled, add_up
from sparkd.base.vllm.warm_up_steps import ANSWER_SPREAD, Limits, make_steps, read_limits, sizes


def test_prompts_fit_the_engine_and_reach_all_of_its_limits() -> None:
    for number in (1, 2, 3):
        steps = make_steps(Limits(2048, 6, 1024), number)
        lengths = [length for step in steps for length in step.prompts]
        assert max(lengths) <= 1024 and min(lengths) >= 1
        assert {len(step.prompts) for step in steps} == {1, 2, 3, 4, 5, 6}
        assert {any(step.sampled) for step in steps} == {True, False}
        for step in steps:
            longest_answer = step.answer_tokens + (ANSWER_SPREAD - 1) * (len(step.prompts) > 1)
            assert max(step.prompts) + longest_answer <= 1024
    assert make_steps(Limits(2048, 6, 1024), 1) != make_steps(Limits(2048, 6, 1024), 2)
    alone = {step.prompts[0] for step in make_steps(Limits(2048, 6, 4096), 1) if len(step.prompts) == 1}
    assert {127, 128, 1023, 1024, 2047, 2048} < alone
    assert max(sizes(2048)) == 2048 and set(range(64, 1025, 64)) < set(sizes(2048))


def test_each_data_parallel_engine_gets_its_share() -> None:
    alone, together = make_steps(Limits(64, 4, 1024), 1), make_steps(Limits(64, 4, 1024, engines=2), 1)
    assert [2 * len(step.prompts) for step in alone] == [len(step.prompts) for step in together]


def test_its_limits_are_those_of_the_command_line() -> None:
    words = ("--max-num-seqs", "4", "--max-num-batched-tokens=2k", "--tool-call-parser", "hermes")
    assert not read_limits(words, 100).tools  # vLLM takes no tools then
    more = (*words, "--enable-auto-tool-choice", "--data-parallel-size", "2")
    assert read_limits(more, 100) == Limits(2000, 4, 100, tools=True, engines=2)
    assert read_limits((), 100) == Limits(8192, 256, 100)
    assert read_limits(("--max-num-seqs", "4096"), 100).requests == 256


def test_what_is_compiled_on_any_node_counts() -> None:
    assert add_up([(2, 1, False), (3, 0, False)], 7) == Compiled(5, 7, 1)
    assert add_up([(0, 0, True), (0, 0, False)], 0).works
