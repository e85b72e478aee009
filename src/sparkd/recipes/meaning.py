"""What a recipe means, whatever way it is written: dotted keys and plain values, and where two recipes differ. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import suppress

from msgspec import Struct

from sparkd.flags import JsonValue
from sparkd.lint import launch
from sparkd.recipes.schema import Recipe

ORDER = (
    "image", "model", "nodes", "executor", "args", "env", "secrets", "container", "caches", "memory_bytes", "host",
    "expect",
)  # fmt: skip
"""Sections that are compared, what matters most first. The others say what a recipe is called, and why."""
COUNTS = ("max-model-len", "max-num-batched-tokens", "max-num-seqs", "block-size")
"""Flags that vLLM reads 128K of as 131072."""
UNORDERED = ("container.devices", "container.volumes")


class Difference(Struct, frozen=True):
    key: str
    left: str
    right: str
    """As JSON; empty where a recipe does not say it."""


def differences(left: Recipe, right: Recipe) -> tuple[Difference, ...]:
    """What differs, in the order of ORDER; nothing where both mean the same."""
    one, other = meaning(left), meaning(right)
    keys = sorted(one.keys() | other.keys(), key=lambda key: (ORDER.index(key.partition(".")[0]), key))
    return tuple(
        Difference(key, one.get(key, ""), other.get(key, "")) for key in keys if one.get(key) != other.get(key)
    )


def meaning(recipe: Recipe) -> dict[str, str]:
    """Every value as canonical JSON by its dotted key; what is left out is absent, and so is null."""
    said = recipe.model_dump(mode="json", by_alias=True)
    found: dict[str, str] = {}
    for section in ORDER:
        value = said[section]
        if section == "args":
            value = flags(recipe.args)
        for key, one in _flat(section, value):
            found[key] = json.dumps(one, sort_keys=True, ensure_ascii=False)
    return found


def flags(args: Mapping[str, JsonValue]) -> dict[str, JsonValue]:
    """Switches by their positive name, in whatever form they are turned off."""
    return {
        name.removeprefix("no-") if isinstance(value, bool) else name: (
            not value if isinstance(value, bool) and name.startswith("no-") else _value(name, value)
        )
        for name, value in args.items()
    }


def _value(name: str, value: JsonValue) -> JsonValue:
    """A flag's value as vLLM reads it."""
    if not isinstance(value, str):
        return value
    if name in COUNTS and (count := launch.amount(value)) is not None:
        return count
    if value.lstrip().startswith(("{", "[")):
        return launch.parsed(value) or value
    with suppress(ValueError):
        return float(value) if value.strip() else value
    return value


def _flat(key: str, value: JsonValue) -> Iterator[tuple[str, JsonValue]]:
    if isinstance(value, Mapping):
        for name, one in value.items():
            yield from _flat(f"{key}.{name}", one)
    elif value is not None:
        yield key, _plain(key, value)


def _plain(key: str, value: JsonValue) -> JsonValue:
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, list):
        items = [_plain(key, one) for one in value]
        return sorted(items, key=json.dumps) if key in UNORDERED else items
    return value
