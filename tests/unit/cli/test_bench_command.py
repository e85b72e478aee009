"""`sparkd bench`: what it refuses, what it chooses, and what people see of the figures."""

import os
from pathlib import Path

import pytest
from msgspec.structs import replace
from tests.unit.commands import sparkd

from sparkd.base.lib.text import plain
from sparkd.tools.cli import bench
from sparkd.tools.measure.bench import Benchmark
from sparkd.tools.measure.figures import DECODE, FIRST, Depth, LevelFigures, Spread
from sparkd.tools.measure.past import Usual


def level(concurrency: int, rate: float, arrivals: str = "static", **fields: object) -> LevelFigures:
    spreads = (Spread(rate, rate * 0.9, rate * 1.1), Spread(37, 36, 38), Spread(1.2, 1, 2), Spread(0.026, 0.02, 0.03))
    return LevelFigures(concurrency, arrivals, 3 * concurrency, 0, *spreads, Spread(14.25, 14, 15), **fields)  # type: ignore[arg-type]


RESULT = Benchmark(
    made="2026-11-23T10:00:00.000+00:00",
    node="spark1",
    recipe="deepseek-v4-flash-balanced",
    model="deepseek-v4-flash",
    plan="d",
    version="1.0",
    prompt_tokens=128,
    answer_tokens=128,
    levels=(level(1, 37.2, accepted=(0.81, 0.5)), level(16, 1163.2, "staggered")),
    depths=(Depth(32768, 29.5, 1111, 30.1, 1.07), Depth(2048, 1.9, 1080, 36.0, 0.0)),
)
EXPECT = {DECODE: {"1": 37.2, "16": 163.2}, FIRST: {"16": 3.85}}


def test_tables_fit_a_terminal_and_have_ratios_to_the_recipe_and_to_usual_results() -> None:
    usual = Usual(3, RESULT.made, same_plan=True, levels=(level(1, 40.0),))
    text = plain(bench.tables(RESULT, EXPECT, usual))
    assert max(map(len, text.splitlines())) <= 80, text
    single = next(line.split() for line in text.splitlines() if line.startswith("1 "))
    assert single[:5] == ["1", "37.2", "33.5-40.9", "1.00", "0.93"]
    assert "accepted, by position: 0.81 0.50" in text
    assert "ratio" in text
    assert "accepted nothing" not in text


def test_a_position_that_accepts_nothing_is_named() -> None:
    levels = (level(1, 37.2, accepted=(0.81, 0.0)), level(8, 90.0, accepted=(0.7, 0.0)))
    text = plain(bench.tables(replace(RESULT, levels=levels), EXPECT, None))
    assert "by position: 0.81 0.00" in text
    assert text.count("position 2 accepted nothing, at any level: lower num_speculative_tokens") == 1


def test_the_speed_up_is_by_how_much_sooner_a_repeated_prompt_is_answered() -> None:
    depths = (Depth(2048, 3.0, 1024, 30.0, 1.5), Depth(2048, 3.0, 1024, 30.0, 0.0))
    assert [row[bench.DEPTH_HEADINGS.index("speed-up")] for row in bench.depth_rows(depths)[1:]] == ["2.0x", bench.NONE]


def test_usual_figures_are_named_with_their_runs() -> None:
    usual = Usual(3, RESULT.made, same_plan=False, levels=())
    text = plain(bench.tables(RESULT, EXPECT, usual))
    assert "usual: the median of 3 runs since 2026-11-23 10:00 UTC, of another plan" in text


def test_the_failure_of_a_whole_level_is_named_on_one_line() -> None:
    bad = LevelFigures(4, "static", 12, 12, None, None, None, None, None, fault="HTTP 503 \x1b[31mdraining")
    text = plain(bench.tables(replace(RESULT, levels=(bad,), fault=bad.fault), {}, None))
    assert "4 requests: 12 of 12 failed: HTTP 503 \\x1b[31mdraining" in text
    assert "ended early" not in text


def test_figures_during_which_a_kernel_was_compiled_are_called_cold() -> None:
    lines = bench.notes(replace(RESULT, levels=(level(1, 37.2), level(4, 80.0, compiled=3))), None)
    assert lines[-2:] == ["cold, kernels were compiled meanwhile: 4 requests", "next, once more: sudo sparkd bench"]
    assert not any("cold" in line for line in bench.notes(RESULT, None))


def test_markdown_is_tables_that_a_forum_takes() -> None:
    lines = bench.markdown(RESULT, EXPECT, None).splitlines()
    rows = [line for line in lines if line.startswith("|")]
    assert [row.count("|") - 1 for row in rows] == [
        *[len(bench.LEVEL_HEADINGS)] * (2 + len(RESULT.levels)),
        *[len(bench.DEPTH_HEADINGS)] * (2 + len(RESULT.depths)),
    ], "headings, their alignment, and a row for each level and depth"


@pytest.mark.parametrize(
    "words",
    [("--concurrency", "0"), ("--concurrency", "1,,2"), ("--runs", "1,2"), ("--answer", "-1"), ("--depth", "9" * 8)],
)
def test_what_is_no_number_is_refused_first(words: tuple[str, ...]) -> None:
    done = sparkd("bench", *words)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith(f"sparkd: {words[0]}: needed ")


def test_without_an_agent_nothing_is_measured(tmp_path: Path) -> None:
    config = tmp_path / "sparkd.toml"
    config.write_text('[engine]\nrecipe = "nemotron-3-super-nvfp4"\n')
    done = sparkd("bench", config=config)
    reason, _hint = done.stderr.splitlines()
    assert ("only root can prove" if os.geteuid() else "no agent runs on this node") in reason
    assert done.returncode == (2 if os.geteuid() else 10)
