"""The next step of `sparkd tune-recipe`: one knob at a time, from the recipe's own value up, then down. Pure.

Each time the whole ladder is computed again from the steps measured so far, so it continues where it was interrupted.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TypeAlias

from msgspec import Struct

from sparkd.base.lib.errors import UsageError
from sparkd.base.lib.text import did_you_mean, sanitize
from sparkd.base.recipes.schema import KV_CACHE_TOKENS, Recipe
from sparkd.base.vllm.args import JsonValue
from sparkd.base.vllm.flag import parse_amount
from sparkd.base.vllm.lint.predicates import DRAFTS, HIGHEST_SHARE
from sparkd.tools.measure.figures import DECODE, FIRST, Spread

Value: TypeAlias = int | float
BOUNDS: Mapping[str, tuple[Value, Value]] = {
    "gpu-memory-utilization": (0.1, 0.95),
    "max-model-len": (256, 1 << 21),
    "max-num-batched-tokens": (64, 1 << 20),
    "max-num-seqs": (1, 1024),
    "speculative-tokens": (1, 16),
}
"""The knobs, and how far a person may go. A shorter context has no room for the prompts of the measurement."""
BASE_STEP: tuple[str, Value] = ("", 0)
"""The recipe as it is."""
SHARE, LENGTH, BATCH, SEQUENCES, TOKENS = BOUNDS
ROOM = (SHARE, LENGTH)
"""Knobs of which more is wanted as long as it costs no speed."""
SHARE_STEP = 0.02
SMALLEST_BATCH = 8192
"""128K prompts were seen to suffer there already (Echo's report, the production profile)."""
DRAFTS_CONFIG, DRAFTS_KEY = "speculative-config", "num_speculative_tokens"
LEAST_SHARE = 0.03
"""Share of a rate: a smaller difference counts as none, however small the spread is."""
_BOUNDS = re.compile(r"([a-z-]+)=([0-9][0-9.]{0,9}[kKmM]?)\.\.([0-9][0-9.]{0,9}[kKmM]?)", re.ASCII)


class Knob(Struct, frozen=True):
    """A value of the recipe that a ladder varies, with its bounds."""

    name: str
    low: Value
    high: Value
    start: Value
    """The recipe's own value, within the bounds."""


class Measured(Struct, frozen=True):
    """A step that was measured."""

    knob: str
    """Empty for the recipe as it is."""
    value: Value
    rate: Spread | None = None
    """Output tokens per second of all requests together."""
    first_token_seconds: float | None = None
    kv_cache_tokens: int | None = None
    fault: str = ""
    """Why it is a bad step; empty for a good one."""


class Position(Struct, frozen=True):
    """The state of a climb."""

    step: tuple[str, Value] | None
    """The step to measure next, with its knob; None: all is measured."""
    values: Mapping[str, Value]
    """The best value so far of each knob that has left the recipe's own; of the knob of `step`, that step's."""
    best: Measured | None
    """The step with those values; None before the first step, or where that was bad."""


def find_position(knobs: Sequence[Knob], measured: Iterable[Measured]) -> Position:
    """Climb through the steps that were measured, up to the first one that was not.

    The first step is the recipe as it is. Then each knob in turn goes up rung by rung, while the knobs before it stay
    at their best; it goes down only where no rung up was better. A rung that is bad, or slower than the fastest so
    far, ends that direction. A rung is better where it is faster; for a knob of ROOM, going up, also where it is as
    fast.
    """
    steps = {(step.knob, step.value): step for step in measured}
    best = steps.get(BASE_STEP)
    if best is None:
        return Position(BASE_STEP, {}, None)
    if best.fault:
        return Position(None, {}, None)
    values: dict[str, Value] = {}
    fastest = best
    for knob in knobs:
        for upward in (True, False):
            if knob.name in values:  # a rung up was better
                break
            for value in rungs(knob, up=upward):
                rung = steps.get((knob.name, value))
                if rung is None:
                    return Position((knob.name, value), {**values, knob.name: value}, best)
                if rung.fault or is_faster(fastest.rate, rung.rate):
                    break
                if is_faster(rung.rate, fastest.rate):
                    fastest = rung
                elif not upward or knob.name not in ROOM:
                    continue
                best, values = rung, {**values, knob.name: value}
    return Position(None, values, best)


def is_faster(rate: Spread | None, base: Spread | None) -> bool:
    """Whether a rate is higher than `base` beyond the spread of both."""
    if rate is None or base is None:
        return False
    return rate.low > base.high and rate.median > base.median * (1 + LEAST_SHARE)


def rungs(knob: Knob, *, up: bool) -> Iterator[Value]:
    """Values after the recipe's own up to a bound, which is the last one: a count doubles, or halves."""
    bound, sign = (knob.high, 1) if up else (knob.low, -1)
    value = _step_from(knob.name, knob.start, up=up)
    while value * sign < bound * sign:
        yield value
        value = _step_from(knob.name, value, up=up)
    if knob.start != bound:
        yield bound


def _step_from(name: str, value: Value, *, up: bool) -> Value:
    if name == SHARE:
        return round(value + (SHARE_STEP if up else -SHARE_STEP), 4)
    if name == TOKENS:
        return value + (1 if up else -1)
    return value * 2 if up else int(value // 2)


def read_knobs(texts: Iterable[str], recipe: Recipe) -> tuple[Knob, ...]:
    """Parse NAME=LOW..HIGH. Raises UsageError."""
    knobs: list[Knob] = []
    for text in texts:
        quote, (name, low, high) = sanitize(text, 60), _parse_bounds(text)
        if name not in BOUNDS:
            raise UsageError(f"--knob {quote}: no knob{did_you_mean(name[:60], BOUNDS)}", f"one of {', '.join(BOUNDS)}")
        lowest, highest = BOUNDS[name]
        if low is None or high is None or not lowest <= low <= high <= highest or name in [knob.name for knob in knobs]:
            raise UsageError(f"--knob {quote}: needed is {name}=LOW..HIGH, once, from {lowest} to {highest}")
        if name == TOKENS and _read_drafts(recipe) is None:
            raise UsageError(f"--knob {quote}: the recipe has no {DRAFTS_CONFIG}")
        own_value = _read_own_value(recipe, name)
        if own_value is None or not low <= own_value <= high:
            fault = "leaves it to the engine" if own_value is None else f"has {own_value}"
            raise UsageError(f"--knob {quote}: the recipe {fault}", "a recipe with a number within the bounds")
        knobs.append(Knob(name, low, high, own_value))
    if not knobs:
        raise UsageError("no knob is given", "such as --knob max-num-seqs=4..16")
    return tuple(knobs)


def _parse_bounds(text: str) -> tuple[str, Value | None, Value | None]:
    """The knob's name and its bounds; None for a bound that is no number."""
    parts = _BOUNDS.fullmatch(text)
    if parts is None:
        return text.partition("=")[0], None, None
    return parts[1], _parse_value(parts[1], parts[2]), _parse_value(parts[1], parts[3])


def _parse_value(name: str, text: str) -> Value | None:
    """A value of that knob; None where the text is none."""
    if name != SHARE:
        return parse_amount(text)
    return float(text) if re.fullmatch(r"[01]?(\.[0-9]{1,6})?", text, re.ASCII) and text else None


def _read_drafts(recipe: Recipe) -> dict[str, JsonValue] | None:
    config = recipe.args.get(DRAFTS_CONFIG)
    return config if isinstance(config, dict) else None


def _read_own_value(recipe: Recipe, name: str) -> Value | None:
    value = (_read_drafts(recipe) or {}).get(DRAFTS_KEY) if name == TOKENS else recipe.args.get(name)
    if isinstance(value, int | float) and not isinstance(value, bool):
        return float(value) if name == SHARE else int(value)
    return _parse_value(name, str(value))


def apply(recipe: Recipe, name: str, values: Mapping[str, Value]) -> Recipe:
    """The recipe with these values of knobs, called `name`."""
    args = {**recipe.args, **{flag: value for flag, value in values.items() if flag != TOKENS}}
    if TOKENS in values and (drafts := _read_drafts(recipe)) is not None:
        args[DRAFTS_CONFIG] = {**drafts, DRAFTS_KEY: values[TOKENS]}
    return recipe.model_copy(update={"name": name, "args": args})


def warnings(knobs: Iterable[Knob], recipe: Recipe) -> Iterator[str]:
    """Lines on rungs that go beyond values of which other owners' reports warn."""
    most_drafts = DRAFTS.get(str((_read_drafts(recipe) or {}).get("method")))
    for knob in knobs:
        values = [*rungs(knob, up=True), *rungs(knob, up=False)]
        if knob.name == BATCH and (below := [value for value in values if value < SMALLEST_BATCH]):
            yield f"{BATCH} {min(below)}: long prompts were seen to suffer at {SMALLEST_BATCH} already"
        if knob.name == TOKENS and most_drafts and (above := [value for value in values if value > most_drafts]):
            yield f"{TOKENS} {max(above)}: more than {most_drafts} was measured to cost more than it gives"
        if knob.name == SHARE and (above := [value for value in values if value > HIGHEST_SHARE]):
            yield f"{SHARE} {max(above)}: at most {HIGHEST_SHARE} was seen to work"


def name_step(knob: str, value: Value) -> str:
    return f"{knob} {value}" if knob else "the recipe as it is"


def describe(step: Measured) -> str:
    if step.fault or step.rate is None:
        return f"bad: {step.fault or 'no figure'}"
    return describe_rate(step.rate)


def describe_rate(rate: Spread) -> str:
    return f"{rate.median:.1f} tokens/s ({rate.low:.1f} to {rate.high:.1f})"


def render(
    base: Recipe, name: str, position: Position, measured: Iterable[Measured], at_once: int, finished_at: str
) -> str:
    """The recipe as YAML, with every step as a comment. `finished_at`: UTC, ISO 8601."""
    best, changed = position.best or Measured(*BASE_STEP), apply(base, name, position.values).args
    expect: dict[str, JsonValue] = {KV_CACHE_TOKENS: best.kv_cache_tokens} if best.kv_cache_tokens else {}
    if best.rate:
        expect[DECODE] = {str(at_once): round(best.rate.median, 1)}
    if best.first_token_seconds is not None:
        expect[FIRST] = {str(at_once): round(best.first_token_seconds, 3)}
    lines = [f"# Measured by `sparkd tune-recipe` until {finished_at}, under {at_once} requests at once:"]
    lines += [f"#   {name_step(step.knob, step.value)}: {describe(step)}" for step in measured]
    description = f"{base.name}, with what measured best on this machine"
    lines += ["schema: 1", f"name: {json.dumps(name)}", f"description: {json.dumps(description)}"]
    lines += [f"source: sparkd tune-recipe, {finished_at[:10]}", f"extends: {json.dumps(base.name)}"]
    args = {flag: value for flag, value in changed.items() if base.args.get(flag) != value}
    for section, values in (("args", args), ("expect", expect)):
        lines += [f"{section}:", *(f"  {key}: {json.dumps(value)}" for key, value in values.items())]
    return "\n".join(lines) + "\n"
