"""Which step a ladder takes next, what it keeps, and the recipe that it writes."""

from pathlib import Path

import pytest
from tests.unit.plans import recipe

from sparkd.base.lib.errors import UsageError
from sparkd.base.recipes.loader import load_recipe
from sparkd.tools.measure import ladder
from sparkd.tools.measure.figures import DECODE, Spread
from sparkd.tools.measure.ladder import BATCH, LENGTH, SEQUENCES, SHARE, TOKENS, Knob, Measured, Value, find_position

SEQS = Knob(SEQUENCES, 2, 16, 4)
ROOM = Knob(LENGTH, 512, 2048, 512)


def rate(median: float, spread: float = 1) -> Spread:
    return Spread(median, median - spread, median + spread)


def one(knob: str, value: Value, median: float = 0, fault: str = "", spread: float = 1) -> Measured:
    return Measured(knob, value, rate(median, spread) if median else None, fault=fault)


BASE = one("", 0, 100)
UP = one(SEQUENCES, 8, 150)


@pytest.mark.parametrize(
    ("knob", "up", "down"),
    [
        (Knob(SEQUENCES, 2, 16, 4), [8, 16], [2]),
        (Knob(SEQUENCES, 4, 12, 4), [8, 12], []),
        (Knob(SEQUENCES, 2, 4, 4), [], [2]),
        (Knob(SEQUENCES, 4, 4, 4), [], []),
        (Knob(SHARE, 0.76, 0.83, 0.8), [0.82, 0.83], [0.78, 0.76]),
        (Knob(TOKENS, 1, 4, 2), [3, 4], [1]),
        (Knob(LENGTH, 600, 4096, 1024), [2048, 4096], [600]),
    ],
)
def test_rungs_double_from_the_recipes_value_to_the_bounds(knob: Knob, up: list[Value], down: list[Value]) -> None:
    assert [*ladder.rungs(knob, up=True)] == up
    assert [*ladder.rungs(knob, up=False)] == down


@pytest.mark.parametrize(
    ("knobs", "measured", "step", "values"),
    [
        ([SEQS], [], ("", 0), {}),
        ([SEQS], [one("", 0, fault="smoke: x")], None, {}),
        ([SEQS], [BASE], (SEQUENCES, 8), {SEQUENCES: 8}),
        ([SEQS], [BASE, UP], (SEQUENCES, 16), {SEQUENCES: 16}),
        # Better, then worse: the better one, and nothing below the recipe's value is tried.
        ([SEQS], [BASE, UP, one(SEQUENCES, 16, 120)], None, {SEQUENCES: 8}),
        ([SEQS], [BASE, UP, one(SEQUENCES, 16, fault="not launched")], None, {SEQUENCES: 8}),
        # Within the spread: it continues, and keeps the first.
        ([SEQS], [BASE, one(SEQUENCES, 8, 101, spread=5)], (SEQUENCES, 16), {SEQUENCES: 16}),
        ([SEQS], [BASE, one(SEQUENCES, 8, 110, spread=20), one(SEQUENCES, 16, 102)], (SEQUENCES, 2), {SEQUENCES: 2}),
        # Beyond the spread, and by 2.5 % alone.
        ([SEQS], [BASE, one(SEQUENCES, 8, 102.5, spread=0.1), one(SEQUENCES, 16, 99)], (SEQUENCES, 2), {SEQUENCES: 2}),
        # The first bad step ends a way, not the knob below its value.
        ([SEQS], [BASE, one(SEQUENCES, 8, 50)], (SEQUENCES, 2), {SEQUENCES: 2}),
        ([SEQS], [BASE, one(SEQUENCES, 8, 50), one(SEQUENCES, 2, 40)], None, {}),
        # The next knob begins with the best of the one before.
        ([SEQS, ROOM], [BASE, UP, one(SEQUENCES, 16, 90)], (LENGTH, 1024), {SEQUENCES: 8, LENGTH: 1024}),
        # More room is wanted as long as it costs nothing, also by small steps together.
        ([ROOM], [BASE, one(LENGTH, 1024, 100), one(LENGTH, 2048, 99)], None, {LENGTH: 2048}),
        ([ROOM], [BASE, one(LENGTH, 1024, 98), one(LENGTH, 2048, 96)], None, {LENGTH: 1024}),
        ([ROOM], [BASE, one(LENGTH, 1024, fault="no memory")], None, {}),
    ],
)
def test_the_next_step(
    knobs: list[Knob], measured: list[Measured], step: tuple[str, Value] | None, values: dict[str, Value]
) -> None:
    found = find_position(knobs, measured)
    assert (found.step, found.values) == (step, values)


def test_a_ladder_that_is_repeated_from_any_moment_ends_at_the_same() -> None:
    figures: dict[tuple[str, Value], float] = {
        ("", 0): 100.0,
        (SEQUENCES, 8): 150.0,
        (SEQUENCES, 16): 90.0,
        (LENGTH, 1024): 150.0,
        (LENGTH, 2048): 60.0,
    }
    measured: list[Measured] = []
    while (at := find_position([SEQS, ROOM], measured)).step is not None:
        measured.append(one(*at.step, figures[at.step]))
    assert at.values == {SEQUENCES: 8, LENGTH: 1024}
    assert len(measured) == len(figures)


DRAFTS = {"method": "deepseek_mtp", "num_speculative_tokens": 2}
DRAFTING = {"speculative-config": DRAFTS, "max-num-seqs": "1k", "gpu-memory-utilization": 0.85, "max-model-len": 65536}


def test_bounds_are_read_beside_the_recipes_own_value() -> None:
    texts = ("max-num-seqs=1..1K", "gpu-memory-utilization=0.7..0.9", "speculative-tokens=1..3", "max-model-len=8k..1m")
    assert ladder.read_knobs(texts, recipe(args=DRAFTING)) == (
        Knob(SEQUENCES, 1, 1024, 1000),
        Knob(SHARE, 0.7, 0.9, 0.85),
        Knob(TOKENS, 1, 3, 2),
        Knob(LENGTH, 8000, 1000000, 65536),
    )


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("max-num-batched-tokens=4096..8192", "leaves it to the engine"),
        ("max-num-seqs=4..16", "has 1000"),
        ("gpu-memory-utilization=0.86..0.9", "has 0.85"),
    ],
)
def test_a_ladder_begins_with_the_recipes_own_value(text: str, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        ladder.read_knobs([text], recipe(args=DRAFTING))


@pytest.mark.parametrize(
    "texts",
    [
        (),
        ("max-num-seqs",),
        ("max-num-seqs=",),
        ("max-num-seqs=4",),
        ("max-num-seqs=8..4",),
        ("max-num-seqs=0..4",),
        ("max-num-seqs=1..999999",),
        ("max-num-seqs=1.5..4",),
        ("max-num-seqs=1..4", "max-num-seqs=1..8"),
        ("gpu-memory-utilization=0.5..1.5",),
        ("gpu-memory-utilization=nan..1",),
        ("max-num-seqs=\u0661..\u0664",),
        ("trust-remote-code=0..1",),
        ("speculative-tokens=1..3",),
        ("\x1b[31m=1..2",),
    ],
)
def test_other_bounds_are_refused(texts: tuple[str, ...]) -> None:
    with pytest.raises(UsageError) as refused:
        ladder.read_knobs(texts, recipe())
    assert str(refused.value).isprintable()


@pytest.mark.parametrize(
    ("knob", "words"),
    [
        (Knob(BATCH, 4096, 16384, 16384), "max-num-batched-tokens 4096: long prompts"),
        (Knob(BATCH, 8192, 16384, 16384), ""),
        (Knob(TOKENS, 1, 3, 2), "speculative-tokens 3: more than 2"),
        (Knob(TOKENS, 1, 2, 2), ""),
        (Knob(SHARE, 0.8, 0.93, 0.8), "gpu-memory-utilization 0.93: at most 0.912"),
        (Knob(SHARE, 0.8, 0.9, 0.8), ""),
        (Knob(LENGTH, 512, 4096, 1024), ""),
    ],
)
def test_what_reports_warn_of_is_said(knob: Knob, words: str) -> None:
    found = [*ladder.warnings([knob], recipe(args=DRAFTING))]
    assert len(found) == bool(words)
    assert "".join(found).startswith(words)


def test_no_report_warns_of_other_drafters() -> None:
    other = recipe(args={"speculative-config": {"method": "ngram", "num_speculative_tokens": 2}})
    assert not [*ladder.warnings([Knob(TOKENS, 1, 5, 2)], other)]


@pytest.mark.parametrize("name", ["up", "2026-11-23", "123", "1.5", "true", "null", "1e3"])
def test_the_written_recipe_loads_and_has_its_figures(tmp_path: Path, name: str) -> None:
    folder = tmp_path
    base = recipe(name="mine", args=DRAFTING, expect={DECODE: {"1": 5.0}})
    text = "schema: 1\nname: mine\nmodel: {path: m}\nimage: {ref: 'i:1'}\nargs:\n  max-num-seqs: 4\n  dtype: float32\n"
    (folder / "mine.yaml").write_text(
        f"{text}  speculative-config: {{method: deepseek_mtp, num_speculative_tokens: 2}}\n"
    )
    best = Measured(TOKENS, 1, rate(123.45), first_token_seconds=0.5, kv_cache_tokens=4096)
    at = ladder.Position(None, {SEQUENCES: 8, TOKENS: 1}, best)
    steps = [one("", 0, 100), best, one(TOKENS, 3, fault="it's 'bad': {x}")]
    (folder / f"{name}.yaml").write_text(ladder.render(base, name, at, steps, 8, "2026-11-23T10:00:00.000+00:00"))
    found = load_recipe(name, [folder]).recipe
    assert found.args["max-num-seqs"] == 8
    assert found.args["speculative-config"] == {"method": "deepseek_mtp", "num_speculative_tokens": 1}
    assert found.args["dtype"] == "float32"
    assert found.expect == {"kv_cache_tokens": 4096, DECODE: {"8": 123.5}, "first_token_seconds": {"8": 0.5}}
