"""Tables of a year's releases of vLLM: by which one an image is judged, and with which one a name came or went."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache
from itertools import accumulate

import msgspec

from sparkd.base.lib import read_data
from sparkd.base.vllm.flag import SHIPPED, FlagTable

FILE = "vllm-releases.json"
"""Below sparkd/data. `make flags` writes it: do not edit."""
_VERSION = re.compile(r"\Av?(0\.\d{1,3})(?:\.\d{1,3})?\Z|vllm[\w.-]{0,60}:v?(0\.\d{1,3})\.\d{1,3}(?!\d|\.|rc|\+)")


class Earlier(FlagTable, frozen=True, forbid_unknown_fields=True):
    """Of a release what the next one has otherwise, or not at all."""

    gone: tuple[str, ...] = ()
    """What it lacks of the next one: flags, FLAG.FIELD, and variables."""


@cache
def load_releases() -> tuple[FlagTable, ...]:
    """The newest, SHIPPED, first. The last patch of each minor release: the first ones have the same flags."""
    return tuple(accumulate(msgspec.json.decode(read_data(FILE), type=tuple[Earlier, ...]), _go_back, initial=SHIPPED))


def _go_back(later: FlagTable, step: Earlier) -> FlagTable:
    gone = {*step.gone}
    flags = {flag.name: flag for flag in (*later.flags, *step.flags) if flag.name not in gone}
    fields = {
        name: {field.name: field for field in (*later.fields.get(name, ()), *step.fields.get(name, ()))}
        for name in {**later.fields, **step.fields}
    }
    kept = {
        name: tuple(field for field in rows.values() if f"{name}.{field.name}" not in gone)
        for name, rows in fields.items()
    }
    variables = sorted({*later.variables, *step.variables} - gone)
    return FlagTable(step.version, tuple(flags.values()), {k: v for k, v in kept.items() if v}, tuple(variables))


def find_release(text: str) -> FlagTable:
    """Of a version, or of an image of vLLM with a version as its tag; SHIPPED where the text names no known release."""
    match = _VERSION.search(text.rpartition("/")[2])
    version = match and (match[1] or match[2])
    return next((one for one in load_releases() if minor(one) == version), SHIPPED) if version else SHIPPED


def minor(table: FlagTable) -> str:
    return table.version.rpartition(".")[0]


def is_before(table: FlagTable, number: int) -> bool:
    """Whether it is of an earlier release than 0.`number`."""
    return int(minor(table).rpartition(".")[2]) < number


def add_history(reason: str, has: Callable[[FlagTable], object]) -> str:
    """With which release it came and went, before a question; the reason alone where no release has it."""
    tables = load_releases()[::-1]
    having = [number for number, table in enumerate(tables) if has(table)]
    if not having:
        return reason
    came = [f"came with {minor(tables[having[0]])}"] if having[0] else []
    went = [f"went with {minor(tables[having[-1] + 1])}"] if tables[having[-1]] is not SHIPPED else []
    since = " and ".join(came + went)
    head, question, nearest = reason.partition("; did you mean")
    whole = f"it {since}" if since else f"vLLM {minor(tables[0])} to {minor(SHIPPED)} have it"
    return f"{head}; {whole}{question}{nearest}"
