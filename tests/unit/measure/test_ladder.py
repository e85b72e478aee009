"""Which step a ladder takes next, and what it keeps."""

from functools import partial

import pytest

from sparkd.tools.measure.figures import Spread
from sparkd.tools.measure.knobs import CONTEXT_LENGTH, SEQUENCES, Knob, Value
from sparkd.tools.measure.ladder import MeasuredStep, find_position

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
    position = find_position(knobs, measured)
    assert position.step == step
    assert position.values == values


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
