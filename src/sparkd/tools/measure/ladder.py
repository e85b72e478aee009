"""The next step of `sparkd tune-recipe`: one knob at a time, from the recipe's own value up, then down. Pure.

Each time the whole ladder is climbed again through the steps measured so far, so it continues where it was interrupted.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from msgspec import Struct

from sparkd.tools.measure.figures import Spread, describe_rate, is_faster
from sparkd.tools.measure.knobs import CONTEXT_LENGTH, MEMORY_SHARE, Knob, Value, rungs

ROOM_KNOBS = (MEMORY_SHARE, CONTEXT_LENGTH)
"""Knobs of which a person wants more as long as it costs no speed: memory for the KV cache, and context."""


class Step(NamedTuple):
    """A plan to measure: a value of one knob, with the best values so far of the knobs before it."""

    knob: str
    """Name of the knob; empty for the recipe as it is."""
    value: Value

    def __str__(self) -> str:
        return f"{self.knob} {self.value}" if self.knob else "the recipe as it is"


BASE_STEP = Step("", 0)
"""The recipe as it is."""


class MeasuredStep(Struct, frozen=True):
    """A step with its figures, or its fault."""

    knob: str
    value: Value
    rate: Spread | None = None
    """Output tokens per second of all requests together."""
    first_token_seconds: float | None = None
    kv_cache_tokens: int | None = None
    fault: str = ""
    """Why it is a bad step; empty for a good one."""

    @property
    def step(self) -> Step:
        return Step(self.knob, self.value)

    def describe(self) -> str:
        if self.fault or self.rate is None:
            return f"bad: {self.fault or 'no figure'}"
        return describe_rate(self.rate)


class Position(Struct, frozen=True):
    """The state of a climb."""

    step: Step | None
    """The step to measure next; None: all is measured."""
    values: Mapping[str, Value]
    """The best value so far of each knob that has left the recipe's own; of the knob of `step`, that step's."""
    best: MeasuredStep | None
    """The step with those values; None before the first step, or where that was bad."""


def find_position(knobs: Sequence[Knob], measured: Iterable[MeasuredStep]) -> Position:
    """Climb through the steps that were measured, up to the first one that was not.

    The first step is the recipe as it is. Then each knob in turn goes up rung by rung, while the knobs before it stay
    at their best; it goes down only where no rung up was better.
    """
    measured_steps = {step.step: step for step in measured}
    base = measured_steps.get(BASE_STEP)
    if base is None:
        return Position(BASE_STEP, {}, None)
    if base.fault:
        return Position(None, {}, None)
    climb = _Climb(base, measured_steps)
    for knob in knobs:
        unmeasured = climb.go(knob, up=True)
        if unmeasured is None and knob.name not in climb.values:
            unmeasured = climb.go(knob, up=False)
        if unmeasured is not None:
            return Position(unmeasured, {**climb.values, knob.name: unmeasured.value}, climb.best)
    return Position(None, climb.values, climb.best)


class _Climb:
    """A climb through measured steps: the best values up to now."""

    def __init__(self, base: MeasuredStep, measured_steps: Mapping[Step, MeasuredStep]) -> None:
        self.best = base
        self.values: dict[str, Value] = {}
        """Values of the best step, as in Position."""
        self._measured_steps = measured_steps
        self._fastest = base
        """May be another step than the best: a rung of ROOM_KNOBS is better also where it is as fast."""

    def go(self, knob: Knob, *, up: bool) -> Step | None:
        """Take the rungs of one direction, up to the first that does not hold.

        Returns the first rung that was not measured, if the climb comes that far.
        """
        for value in rungs(knob, up=up):
            rung = self._measured_steps.get(Step(knob.name, value))
            if rung is None:
                return Step(knob.name, value)
            if not self._holds(rung):
                return None
            if self._is_better(rung, up=up):
                self.best = rung
                self.values[knob.name] = value
            if is_faster(rung.rate, self._fastest.rate):
                self._fastest = rung
        return None

    def _holds(self, rung: MeasuredStep) -> bool:
        """Whether the rung is good, and not slower than the fastest: so many small losses do not add up."""
        return not rung.fault and not is_faster(self._fastest.rate, rung.rate)

    def _is_better(self, rung: MeasuredStep, *, up: bool) -> bool:
        """Whether a rung that holds is faster, or has more room at the same speed."""
        return is_faster(rung.rate, self._fastest.rate) or (up and rung.knob in ROOM_KNOBS)
