"""Compares two recipes by the meaning of their values, not by their notation."""

import json
from collections.abc import Iterator, Mapping
from contextlib import suppress
from math import isfinite

from msgspec import Struct

from sparkd.base import config
from sparkd.base.recipes.additions import added_env
from sparkd.base.recipes.schema import Recipe
from sparkd.base.vllm.args import JsonValue
from sparkd.base.vllm.container_paths import kept_caches
from sparkd.base.vllm.flag import SHIPPED, parse_amount, parse_json

ORDER = (
    "image", "model", "nodes", "executor", "args", "env", "secrets", "container", "caches", "memory_bytes", "host",
    "expect",
)  # fmt: skip
"""The sections to compare, the most important first. The others describe the recipe."""
AMOUNTS = ("amount", "amount or auto")
"""Kinds of flags for which vLLM reads 128K as 131072."""
NUMBERS = ("int", "float", *AMOUNTS)
"""Kinds of flags that take nothing else."""


class Difference(Struct, frozen=True):
    """A value that differs between two recipes: both as JSON, empty for a missing one."""

    key: str
    left: str
    right: str


def compare_recipes(left: Recipe, right: Recipe) -> tuple[Difference, ...]:
    """The differences, sorted by section as in ORDER."""
    lefts, rights = normalize(left), normalize(right)
    keys = sorted(lefts.keys() | rights.keys(), key=lambda key: (ORDER.index(key.partition(".")[0]), key))
    differences = (Difference(key, lefts.get(key, ""), rights.get(key, "")) for key in keys)
    return tuple(difference for difference in differences if difference.left != difference.right)


def normalize(recipe: Recipe) -> dict[str, str]:
    """Every value as canonical JSON, by its dotted key. Without null values."""
    variables = {**added_env(recipe, config.Settings(), recipe.nodes.max), **recipe.env}
    env = {name: text for name, text in variables.items() if text is not None}
    mounted = [volume.target for volume in recipe.container.volumes]
    values = {
        **recipe.model_dump(mode="json", by_alias=True),
        "args": normalize_flags(recipe.args),
        "env": env,
        "caches": kept_caches(recipe.caches, env, mounted, gpu=recipe.container.gpus == "all"),
    }
    return {
        key: json.dumps(value, sort_keys=True, ensure_ascii=False)
        for section in ORDER
        for key, value in _flatten(section, values[section])
    }


def normalize_flags(args: Mapping[str, JsonValue]) -> dict[str, JsonValue]:
    """Flags as vLLM reads them, each switch under its positive name: `no-x: true` and `x: false` become `x: false`."""
    flags: dict[str, JsonValue] = {}
    for name, value in args.items():
        if isinstance(value, bool):
            flags[name.removeprefix("no-")] = value is not name.startswith("no-")
        else:
            flags[name] = _normalize_value(name, value)
    return flags


def _normalize_value(name: str, value: JsonValue) -> JsonValue:
    """The value as vLLM reads it. What it reads as text stays that: a revision 007 is not 7."""
    flag = SHIPPED.by_name.get(name)
    kind = flag.kind if flag else ""  # a field of a flag's JSON, or an unknown flag, such as a fork's
    if kind == "text" and isinstance(value, int | float):
        return str(value)
    if kind == "text" or not isinstance(value, str):
        return value
    if kind in AMOUNTS and (count := parse_amount(value)) is not None:
        return count
    if value.lstrip().startswith(("{", "[")):
        parsed = parse_json(value)
        return value if parsed is None else parsed
    return _normalize_text(name, kind, value)


def _normalize_text(name: str, kind: str, text: str) -> JsonValue:
    number = _parse_number(text)
    if number is None or kind in NUMBERS:
        return text if number is None else number
    # vLLM reads a field of a flag's JSON as JSON. Of an unknown flag, which may take text, only the usual notation is a
    # number: 1.10 may be a version.
    is_number = parse_json(text) == number if "." in name else str(number) == text
    return number if is_number else text


def _parse_number(text: str) -> int | float | None:
    """A number as Python reads it, as vLLM's parser does; None for other text.

    Also None for an infinite one: 9e9999 and 1234e5678 differ.
    """
    with suppress(ValueError):
        return int(text)
    with suppress(ValueError, OverflowError):
        number = float(text)
        return int(number) if number.is_integer() else number if isfinite(number) else None
    return None


def _flatten(key: str, value: JsonValue) -> Iterator[tuple[str, JsonValue]]:
    if isinstance(value, Mapping) and (value or not key.startswith("args.")):  # a flag's own {} is a value
        for name, inner in value.items():
            yield from _flatten(f"{key}.{name}", inner)
    elif value is not None:
        yield key, _normalize_number(key, value)


def _normalize_number(key: str, value: JsonValue) -> JsonValue:
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, list):
        values = [_normalize_number(key, inner) for inner in value]
        return sorted(values, key=json.dumps) if key in ("container.devices", "container.volumes") else values
    return value
