"""Recipes in canonical form (dotted keys and plain values), and the differences between two."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import suppress

from msgspec import Struct

from sparkd.recipes.schema import Recipe
from sparkd.vllm.args import JsonValue
from sparkd.vllm.flag import parse_amount, parse_json

ORDER = (
    "image", "model", "nodes", "executor", "args", "env", "secrets", "container", "caches", "memory_bytes", "host",
    "expect",
)  # fmt: skip
"""The sections to compare, the most important first. The others describe the recipe."""
COUNTS = ("max-model-len", "max-num-batched-tokens", "max-num-seqs", "block-size")
"""Flags for which vLLM reads 128K as 131072."""
UNORDERED = ("container.devices", "container.volumes")


class Difference(Struct, frozen=True):
    """Both values as JSON; empty for a missing one."""

    key: str
    left: str
    right: str


def compare_recipes(left: Recipe, right: Recipe) -> tuple[Difference, ...]:
    """The differences, sorted by section as in ORDER."""
    one, other = normalize(left), normalize(right)
    keys = sorted(one.keys() | other.keys(), key=lambda key: (ORDER.index(key.partition(".")[0]), key))
    return tuple(
        Difference(key, one.get(key, ""), other.get(key, "")) for key in keys if one.get(key) != other.get(key)
    )


def normalize(recipe: Recipe) -> dict[str, str]:
    """Every value as canonical JSON, by its dotted key. Without null values."""
    values = {**recipe.model_dump(mode="json", by_alias=True), "args": normalize_switches(recipe.args)}
    return {
        key: json.dumps(value, sort_keys=True, ensure_ascii=False)
        for section in ORDER
        for key, value in _flatten(section, values[section])
    }


def normalize_switches(args: Mapping[str, JsonValue]) -> dict[str, JsonValue]:
    """Flags with every switch under its positive name: `no-x: true` and `x: false` become `x: false`."""
    found: dict[str, JsonValue] = {}
    for name, value in args.items():
        if isinstance(value, bool):
            found[name.removeprefix("no-")] = value is not name.startswith("no-")
        else:
            found[name] = _normalize_value(name, value)
    return found


def _normalize_value(name: str, value: JsonValue) -> JsonValue:
    """The value as vLLM reads it."""
    if not isinstance(value, str):
        return value
    if name in COUNTS and (count := parse_amount(value)) is not None:
        return count
    if value.lstrip().startswith(("{", "[")):
        return parse_json(value) or value
    with suppress(ValueError):
        return float(value) if value.strip() else value
    return value


def _flatten(key: str, value: JsonValue) -> Iterator[tuple[str, JsonValue]]:
    if isinstance(value, Mapping):
        for name, one in value.items():
            yield from _flatten(f"{key}.{name}", one)
    elif value is not None:
        yield key, _normalize_number(key, value)


def _normalize_number(key: str, value: JsonValue) -> JsonValue:
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, list):
        items = [_normalize_number(key, one) for one in value]
        return sorted(items, key=json.dumps) if key in UNORDERED else items
    return value
