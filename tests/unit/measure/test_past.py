"""What is usual by earlier benches, and which of them a new one is compared with."""

import msgspec
from msgspec.structs import replace

from sparkd.base.state.facts import Facts
from sparkd.base.state.history import Bench, Launch, Row, Smoke
from sparkd.tools.measure.bench import Benchmark
from sparkd.tools.measure.figures import LevelFigures, Spread
from sparkd.tools.measure.past import Run, describe_decline, describe_slower_benches, find_runs, usual_figures


def run(day: int, rate: float, dtype: str = "half", plan: str = "d", prompt_tokens: int = 128) -> Run:
    rates = Spread(rate, rate * 0.9, rate * 1.1)
    level = LevelFigures(4, "static", 12, 0, rates, rates, None, None, None)
    made = f"2026-11-{day:02}T10:00:00.000+00:00"
    result = Benchmark(made, "spark1", "tiny", "tiny", plan, "1", prompt_tokens, 128, levels=(level,))
    return Run(result, Launch(str(day), made, 0, plan, "tiny", Facts({"args.dtype": dtype}, {}, {})))


EARLIER = (run(1, 37.0), run(2, 36.0), run(3, 38.0), run(4, 99.0, prompt_tokens=64))


def test_the_usual_rate_is_the_median_of_runs_with_the_same_lengths() -> None:
    usual = usual_figures(run(5, 37).result, EARLIER)
    assert usual is not None
    assert usual.runs == 3
    assert usual.since.startswith("2026-11-01")
    assert usual.levels[0].output_tokens_per_second is not None
    assert usual.levels[0].output_tokens_per_second.median == 37.0


def test_runs_of_the_same_plan_alone_count_where_there_are_any() -> None:
    usual = usual_figures(run(5, 37, plan="e").result, (*EARLIER, run(4, 50, plan="e")))
    assert usual is not None
    assert usual.same_plan
    assert usual.runs == 1


def test_runs_of_other_plans_count_where_none_is_of_the_same() -> None:
    usual = usual_figures(run(5, 37, plan="f").result, EARLIER)
    assert usual is not None
    assert not usual.same_plan
    assert usual.runs == 3


def test_nothing_is_usual_without_earlier_runs() -> None:
    assert usual_figures(run(5, 37).result, ()) is None


def test_a_decline_is_reported_with_what_changed_between() -> None:
    (line,) = describe_slower_benches((*EARLIER, run(6, 20.0, "float32")))
    figures, _, change = line.partition("; ")
    assert figures == "tiny, 4 at once: slower since 2026-11-06 10:00 UTC: 20.0 tokens/s, 37.0 before"
    assert change == "changed: args.dtype half -> float32"


def test_a_decline_whose_launch_is_gone_from_the_history_has_no_changes() -> None:
    launchless = Run(run(6, 20.0).result, None)
    assert describe_slower_benches((*EARLIER, launchless))[0].endswith("; what changed is not known any more")


def test_a_usual_rate_is_no_decline() -> None:
    assert describe_slower_benches((*EARLIER, run(6, 36.0))) == ()
    assert describe_slower_benches(()) == ()


def test_runs_are_read_from_rows_without_those_of_another_form() -> None:
    rows: list[Row] = []
    for earlier in EARLIER[:2]:
        assert earlier.launch is not None
        figures = msgspec.Raw(msgspec.json.encode(earlier.result))
        rows += [
            earlier.launch,
            Bench(f"b{earlier.launch.id}", earlier.result.made, earlier.launch.id, "tiny", figures),
        ]
    bad = Bench("x", "", "1", "tiny", msgspec.Raw(b'{"levels": 3}'))
    assert find_runs((*rows, bad, Smoke("s", "", "1", "tiny", 0))) == EARLIER[:2]


def test_slower_loads_are_judged_among_those_of_the_same_recipe_and_rank() -> None:
    launch = Launch("a", "2026-11-23T10:00:00.000+00:00", 0, "d", "tiny", Facts({}, {}, {}))
    loads = [replace(launch, load_seconds=seconds) for seconds in (90.0, 91.0, 90.5)]
    other = replace(launch, recipe="other", load_seconds=300.0)
    assert describe_decline(()) == ()
    assert describe_decline((*loads, other)) == ()
    (line,) = describe_decline((*loads, other, replace(launch, load_seconds=300.0)))
    assert line.startswith("tiny: loads are slower since 2026-11-23 10:00 UTC: 300 s, 90 s before")
