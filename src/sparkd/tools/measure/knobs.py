"""Knobs of `sparkd tune-recipe`: numbers of a recipe, the bounds that a person gives, the rungs in between. Pure."""

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import TypeAlias

from msgspec import Struct

from sparkd.base.lib.errors import UsageError
from sparkd.base.lib.text import did_you_mean, sanitize
from sparkd.base.recipes.schema import Recipe
from sparkd.base.vllm.args import JsonValue
from sparkd.base.vllm.flag import parse_amount
from sparkd.base.vllm.lint.predicates import DRAFTS, HIGHEST_SHARE

Value: TypeAlias = int | float

MEMORY_SHARE = "gpu-memory-utilization"
CONTEXT_LENGTH = "max-model-len"
BATCH_TOKENS = "max-num-batched-tokens"
SEQUENCES = "max-num-seqs"
DRAFT_TOKENS = "speculative-tokens"
"""No flag of vLLM, as the others are: it is the number DRAFTS_KEY in the JSON of DRAFTS_CONFIG."""
DRAFTS_CONFIG, DRAFTS_KEY = "speculative-config", "num_speculative_tokens"
WIDEST_BOUNDS: Mapping[str, tuple[Value, Value]] = {
    MEMORY_SHARE: (0.1, 0.95),
    CONTEXT_LENGTH: (256, 1 << 21),  # a shorter context has no room for the prompts of the measurement
    BATCH_TOKENS: (64, 1 << 20),
    SEQUENCES: (1, 1024),
    DRAFT_TOKENS: (1, 16),
}
"""The knobs, and how far a person may go with each. Whether a value within works is for its step to find out."""
MEMORY_SHARE_RUNG = 0.02
"""2.4 GiB of a Spark's 121. A share can't double as a count does: it is near 1 from the start."""
SMALLEST_BATCH = 8192
"""128K prompts were seen to suffer there already (Echo's report, the production profile)."""
_KNOB_TEXT = re.compile(r"([a-z-]+)=([0-9][0-9.]{0,9}[kKmM]?)\.\.([0-9][0-9.]{0,9}[kKmM]?)", re.ASCII)
_SHARE_TEXT = re.compile(r"[01](\.[0-9]{1,6})?|\.[0-9]{1,6}", re.ASCII)


class Knob(Struct, frozen=True):
    """A value of the recipe that a ladder varies, with its bounds."""

    name: str
    low: Value
    high: Value
    start: Value
    """The recipe's own value, within the bounds."""


def rungs(knob: Knob, *, up: bool) -> Iterator[Value]:
    """Values after the recipe's own up to a bound, which is the last one.

    Counts double, or halve, since smaller steps are lost in the spread of the figures.
    """
    bound, sign = (knob.high, 1) if up else (knob.low, -1)
    value = _next_value(knob.name, knob.start, up=up)
    while value * sign < bound * sign:
        yield value
        value = _next_value(knob.name, value, up=up)
    if knob.start != bound:
        yield bound


def _next_value(name: str, value: Value, *, up: bool) -> Value:
    if name == MEMORY_SHARE:
        return round(value + (MEMORY_SHARE_RUNG if up else -MEMORY_SHARE_RUNG), 4)
    if name == DRAFT_TOKENS:
        return value + (1 if up else -1)
    return value * 2 if up else int(value // 2)


def read_knobs(texts: Iterable[str], recipe: Recipe) -> tuple[Knob, ...]:
    """Parse texts such as max-num-seqs=4..16. Raises UsageError."""
    knobs: dict[str, Knob] = {}
    for text in texts:
        knob = _read_knob(text, recipe, knobs)
        knobs[knob.name] = knob
    if not knobs:
        raise UsageError("no knob is given", "such as --knob max-num-seqs=4..16")
    return tuple(knobs.values())


def _read_knob(text: str, recipe: Recipe, previous_names: Collection[str]) -> Knob:
    quote, (name, low, high) = sanitize(text, 60), _parse_bounds(text)
    if name not in WIDEST_BOUNDS:
        likely = did_you_mean(name[:60], WIDEST_BOUNDS)
        raise UsageError(f"--knob {quote}: no knob{likely}", f"one of {', '.join(WIDEST_BOUNDS)}")
    lowest, highest = WIDEST_BOUNDS[name]
    if low is None or high is None or not lowest <= low <= high <= highest or name in previous_names:
        raise UsageError(f"--knob {quote}: needed is {name}=LOW..HIGH, once, from {lowest} to {highest}")
    if name == DRAFT_TOKENS and _read_drafts_config(recipe) is None:
        raise UsageError(f"--knob {quote}: the recipe has no {DRAFTS_CONFIG}")
    own_value = _read_own_value(recipe, name)
    if own_value is None or not low <= own_value <= high:
        fault = "leaves it to the engine" if own_value is None else f"has {own_value}"
        raise UsageError(f"--knob {quote}: the recipe {fault}", "a recipe with a number within the bounds")
    return Knob(name, low, high, own_value)


def _parse_bounds(text: str) -> tuple[str, Value | None, Value | None]:
    """The knob's name and its bounds; None for a bound that is no number."""
    parts = _KNOB_TEXT.fullmatch(text)
    if parts is None:
        return text.partition("=")[0], None, None
    name, low, high = parts.groups()
    return name, _parse_value(name, low), _parse_value(name, high)


def _parse_value(name: str, text: str) -> Value | None:
    """A value of that knob; None where the text is none."""
    if name != MEMORY_SHARE:
        return parse_amount(text)
    return float(text) if _SHARE_TEXT.fullmatch(text) else None


def _read_drafts_config(recipe: Recipe) -> dict[str, JsonValue] | None:
    config = recipe.args.get(DRAFTS_CONFIG)
    return config if isinstance(config, dict) else None


def _read_own_value(recipe: Recipe, name: str) -> Value | None:
    """The recipe's value of a knob; None where it has no number for it."""
    own_value = (_read_drafts_config(recipe) or {}).get(DRAFTS_KEY) if name == DRAFT_TOKENS else recipe.args.get(name)
    if isinstance(own_value, int | float) and not isinstance(own_value, bool):
        return float(own_value) if name == MEMORY_SHARE else int(own_value)
    return _parse_value(name, str(own_value))


def set_values(recipe: Recipe, name: str, values: Mapping[str, Value]) -> Recipe:
    """The recipe with these values of knobs, called `name`."""
    args = {**recipe.args, **{flag: value for flag, value in values.items() if flag != DRAFT_TOKENS}}
    if DRAFT_TOKENS in values and (config := _read_drafts_config(recipe)) is not None:
        args[DRAFTS_CONFIG] = {**config, DRAFTS_KEY: values[DRAFT_TOKENS]}
    return recipe.model_copy(update={"name": name, "args": args})


def list_warnings(knobs: Iterable[Knob], recipe: Recipe) -> Iterator[str]:
    """Lines on rungs that go beyond values of which other owners' reports warn."""
    most_drafts = DRAFTS.get(str((_read_drafts_config(recipe) or {}).get("method")))
    for knob in knobs:
        values = [*rungs(knob, up=True), *rungs(knob, up=False)]
        if not values:
            continue
        least, most = min(values), max(values)
        if knob.name == BATCH_TOKENS and least < SMALLEST_BATCH:
            yield f"{BATCH_TOKENS} {least}: long prompts were seen to suffer at {SMALLEST_BATCH} already"
        if knob.name == DRAFT_TOKENS and most_drafts and most > most_drafts:
            yield f"{DRAFT_TOKENS} {most}: more than {most_drafts} was measured to cost more than it gives"
        if knob.name == MEMORY_SHARE and most > HIGHEST_SHARE:
            yield f"{MEMORY_SHARE} {most}: at most {HIGHEST_SHARE} was seen to work"
