"""Which step a ladder takes next, what it keeps, and the recipe that it writes."""

from functools import partial
from pathlib import Path

import pytest
from tests.unit.plans import recipe

from sparkd.base.recipes.loader import load_recipe
from sparkd.tools.measure.climb import Tuning
from sparkd.tools.measure.figures import DECODE, Spread
from sparkd.tools.measure.knobs import CONTEXT_LENGTH, DRAFT_TOKENS, SEQUENCES, Knob, Value
from sparkd.tools.measure.ladder import MeasuredStep, Position, find_position
from sparkd.tools.measure.ladder_ends import render_recipe

SEQS = Knob(SEQUENCES, 2, 16, 4)
ROOM = Knob(CONTEXT_LENGTH, 512, 2048, 512)


def rate(median: float, spread: float = 1) -> Spread:
    return Spread(median, median - spread, median + spread)


def make_step(knob: str, value: Value, median: float = 0, fault: str = "", spread: float = 1) -> MeasuredStep:
    return MeasuredStep(knob, value, rate(median, spread) if median else None, fault=fault)


seqs, room = partial(make_step, SEQUENCES), partial(make_step, CONTEXT_LENGTH)
BASE = make_step("", 0, 100)
UP = seqs(8, 150)


@pytest.mark.parametrize(
    ("knobs", "measured", "step", "values"),
    [
        ([SEQS], [], ("", 0), {}),
        ([SEQS], [make_step("", 0, fault="smoke: x")], None, {}),
        ([SEQS], [BASE], (SEQUENCES, 8), {SEQUENCES: 8}),
        ([SEQS], [BASE, UP], (SEQUENCES, 16), {SEQUENCES: 16}),
        # Better, then worse: the better one, and nothing below the recipe's value is tried.
        ([SEQS], [BASE, UP, seqs(16, 120)], None, {SEQUENCES: 8}),
        ([SEQS], [BASE, UP, seqs(16, fault="not launched")], None, {SEQUENCES: 8}),
        # Within the spread: it continues, and keeps the first.
        ([SEQS], [BASE, seqs(8, 101, spread=5)], (SEQUENCES, 16), {SEQUENCES: 16}),
        ([SEQS], [BASE, seqs(8, 110, spread=20), seqs(16, 102)], (SEQUENCES, 2), {SEQUENCES: 2}),
        # Beyond the spread, and by 2.5 % alone.
        ([SEQS], [BASE, seqs(8, 102.5, spread=0.1), seqs(16, 99)], (SEQUENCES, 2), {SEQUENCES: 2}),
        # The first bad step ends a way, not the knob below its value.
        ([SEQS], [BASE, seqs(8, 50)], (SEQUENCES, 2), {SEQUENCES: 2}),
        ([SEQS], [BASE, seqs(8, 50), seqs(2, 40)], None, {}),
        # The next knob begins with the best of the one before.
        ([SEQS, ROOM], [BASE, UP, seqs(16, 90)], (CONTEXT_LENGTH, 1024), {SEQUENCES: 8, CONTEXT_LENGTH: 1024}),
        # More room is wanted as long as it costs nothing, also by small steps together.
        ([ROOM], [BASE, room(1024, 100), room(2048, 99)], None, {CONTEXT_LENGTH: 2048}),
        ([ROOM], [BASE, room(1024, 98), room(2048, 96)], None, {CONTEXT_LENGTH: 1024}),
        ([ROOM], [BASE, room(1024, fault="no memory")], None, {}),
    ],
)
def test_the_next_step(
    knobs: list[Knob], measured: list[MeasuredStep], step: tuple[str, Value] | None, values: dict[str, Value]
) -> None:
    found = find_position(knobs, measured)
    assert (found.step, found.values) == (step, values)


def test_a_ladder_that_is_repeated_from_any_moment_ends_at_the_same() -> None:
    figures: dict[tuple[str, Value], float] = {
        ("", 0): 100.0,
        (SEQUENCES, 8): 150.0,
        (SEQUENCES, 16): 90.0,
        (CONTEXT_LENGTH, 1024): 150.0,
        (CONTEXT_LENGTH, 2048): 60.0,
    }
    measured: list[MeasuredStep] = []
    while (at := find_position([SEQS, ROOM], measured)).step is not None:
        measured.append(make_step(*at.step, figures[at.step]))
    assert at.values == {SEQUENCES: 8, CONTEXT_LENGTH: 1024}
    assert len(measured) == len(figures)


DRAFTS = {"method": "deepseek_mtp", "num_speculative_tokens": 2}
DRAFTING = {"speculative-config": DRAFTS, "max-num-seqs": "1k", "gpu-memory-utilization": 0.85, "max-model-len": 65536}


@pytest.mark.parametrize("name", ["up", "2026-11-23", "123", "1.5", "true", "null", "1e3"])
def test_the_written_recipe_loads_and_has_its_figures(tmp_path: Path, name: str) -> None:
    folder = tmp_path
    base = recipe(name="mine", args=DRAFTING, expect={DECODE: {"1": 5.0}})
    text = "schema: 1\nname: mine\nmodel: {path: m}\nimage: {ref: 'i:1'}\nargs:\n  max-num-seqs: 4\n  dtype: float32\n"
    (folder / "mine.yaml").write_text(
        f"{text}  speculative-config: {{method: deepseek_mtp, num_speculative_tokens: 2}}\n"
    )
    best = MeasuredStep(DRAFT_TOKENS, 1, rate(123.45), first_token_seconds=0.5, kv_cache_tokens=4096)
    at = Position(None, {SEQUENCES: 8, DRAFT_TOKENS: 1}, best)
    steps = (make_step("", 0, 100), best, make_step(DRAFT_TOKENS, 3, fault="it's 'bad': {x}"))
    tuning = Tuning(name, "f", (), 8, steps)
    (folder / f"{name}.yaml").write_text(render_recipe(base, tuning, at, "2026-11-23T10:00:00.000+00:00"))
    found = load_recipe(name, [folder]).recipe
    assert found.args["max-num-seqs"] == 8
    assert found.args["speculative-config"] == {"method": "deepseek_mtp", "num_speculative_tokens": 1}
    assert found.args["dtype"] == "float32"
    assert found.expect == {"kv_cache_tokens": 4096, DECODE: {"8": 123.5}, "first_token_seconds": {"8": 0.5}}
