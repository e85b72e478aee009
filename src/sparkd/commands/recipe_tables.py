"""What `sparkd recipe` prints of recipes: the list, one with the origin of its values, what differs between two."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from sparkd.errors import ConfigError
from sparkd.lib.tables import Table

if TYPE_CHECKING:
    from sparkd.flags import JsonValue
    from sparkd.recipes.meaning import Difference
    from sparkd.recipes.schema import Recipe
    from sparkd.recipes.told import Told

HEADINGS = ("NAME", "MODEL", "NODES", "CONTEXT", "SEQUENCES", "TOKENS/S", "FROM", "SOURCE")
LONGEST_SOURCE = 70
LONGEST_VALUE = 60


def listed() -> Table:
    """Every recipe that can be named."""
    return Table([HEADINGS, *_rows()], heading=True, one_line=True)


def _rows() -> Iterator[tuple[str, ...]]:
    from sparkd import share
    from sparkd.recipes import load, lookup

    folders = lookup.folders()
    for place in lookup.places(folders):
        whose = "shipped" if place.path.parent == share.recipes() else str(place.path.parent)
        try:
            recipe = load.load(place.name, folders).recipe
        except ConfigError:
            yield place.name, "broken: `sparkd recipe check` says why", "", "", "", "", whose, ""
            continue
        nodes = recipe.nodes
        yield (
            place.name,
            recipe.model.path,
            str(nodes.min) if nodes.min == nodes.max else f"{nodes.min}-{nodes.max}",
            str(recipe.args.get("max-model-len") or "-"),
            str(recipe.args.get("max-num-seqs") or "-"),
            _tokens_a_second(recipe),
            whose,
            _cut(recipe.source.partition(";")[0], LONGEST_SOURCE) or "-",
        )


def _tokens_a_second(recipe: Recipe) -> str:
    """Those of one request alone, and of the most at once."""
    said = recipe.expect.get("decode_tokens_per_second")
    if not isinstance(said, Mapping):
        return "-"
    by_requests = {int(count): rate for count, rate in said.items() if count.isdecimal()}
    ends = dict.fromkeys(sorted(by_requests)[:1] + sorted(by_requests)[-1:])
    return ", ".join(f"{by_requests[count]} at {count}" for count in ends) or "-"


def shown(values: Sequence[Told]) -> str:
    """One line a value: what it is, who says it and where, and what the recipe says instead."""
    return "\n".join(f"{_line(one):<60} # {one.by}: {one.where}{_instead(one)}" for one in values)


def _line(one: Told) -> str:
    return f"{one.key}: {_json(one.value)}"


def _instead(one: Told) -> str:
    return "" if one.instead_of is None else f", instead of {_cut(_json(one.instead_of), LONGEST_VALUE)}"


def compared(left: str, right: str, differences: Sequence[Difference]) -> str | Table:
    """What differs, under the names of both."""
    if not differences:
        return f"{left} and {right} mean the same"
    rows = [(one.key, one.left or "-", one.right or "-") for one in differences]
    return Table([("", left, right), *rows], heading=True, flexible=2)


def _json(value: JsonValue) -> str:
    return json.dumps(value, ensure_ascii=False)


def _cut(text: str, longest: int) -> str:
    return text if len(text) <= longest else f"{text[: longest - 1].rstrip()}…"
