"""Tables of a year's releases of vLLM: the one that an image is judged by, and those in which a name came or went."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache
from itertools import accumulate

import msgspec

from sparkd.base.lib import prepared, read_data
from sparkd.base.vllm.flag import SHIPPED, FlagTable

FILE = "vllm-releases.json"
"""Below sparkd/data. `make flags` writes it: do not edit."""
_VERSION = re.compile(r"\Av?(0\.\d{1,3})(?:\.\d{1,3})?\Z|vllm[\w.-]{0,60}:v?(0\.\d{1,3})\.\d{1,3}(?!\d|\.|rc|\+)")
"""The minor version of a release: in a version, or in the tag of vLLM's image; of no candidate and no local build."""


class Earlier(FlagTable, frozen=True, forbid_unknown_fields=True):
    """A release, as the flags, fields and variables that the next one has changed or removed."""

    gone: tuple[str, ...] = ()
    """Names that are new in the next one, so gone on the way back: flags, FLAG.FIELD, and variables."""


@cache
def load_releases() -> tuple[FlagTable, ...]:
    """The newest, SHIPPED, first. The last patch of each minor release: the first ones have the same flags."""
    return tuple(
        accumulate(msgspec.json.decode(read_data(FILE), type=prepared(tuple[Earlier, ...])), _go_back, initial=SHIPPED)
    )


def _go_back(later: FlagTable, step: Earlier) -> FlagTable:
    """The whole table of the release before `later`."""
    gone = {*step.gone}
    flags = {flag.name: flag for flag in (*later.flags, *step.flags) if flag.name not in gone}
    fields = {}
    for flag in {**later.fields, **step.fields}:
        merged = {field.name: field for field in (*later.fields.get(flag, ()), *step.fields.get(flag, ()))}
        if kept := tuple(field for name, field in merged.items() if f"{flag}.{name}" not in gone):
            fields[flag] = kept
    variables = sorted({*later.variables, *step.variables} - gone)
    return FlagTable(step.version, tuple(flags.values()), fields, tuple(variables))


def find_release(text: str) -> FlagTable:
    """The release of a version, or of an image of vLLM with a version as its tag; SHIPPED for any other text."""
    return known_release(text) or SHIPPED


def known_release(text: str) -> FlagTable | None:
    """As `find_release`; None for any other text."""
    match = _VERSION.search(text.rpartition("/")[2])
    number = match and (match[1] or match[2])
    return next((table for table in load_releases() if minor(table) == number), None)


def list_registered(flag: str) -> set[str]:
    """The names for the flag that any release registers."""
    known = (table.by_name.get(flag) for table in load_releases())
    return {name for other in known if other for name in other.registered}


def name_release(text: str) -> str:
    """Of `find_release`, as a recipe's `image.vllm` has it; empty for the newest, and where the text names none."""
    table = find_release(text)
    return "" if table is SHIPPED else minor(table)


def minor(table: FlagTable) -> str:
    return table.version.rpartition(".")[0]


def is_before(table: FlagTable, number: int) -> bool:
    """Whether it is of an earlier release than 0.`number`."""
    return int(minor(table).rpartition(".")[2]) < number


def add_history(reason: str, has: Callable[[FlagTable], object]) -> str:
    """The reason, and before its `; did you mean` the releases in which its subject came and went, if any has it."""
    tables = load_releases()[::-1]  # the oldest first: what that one has came with it, or earlier
    having = [number for number, table in enumerate(tables) if has(table)]
    if not having:
        return reason
    came = [f"came with {minor(tables[having[0]])}"] if having[0] else []
    went = [f"went with {minor(tables[having[-1] + 1])}"] if tables[having[-1]] is not SHIPPED else []
    since = " and ".join(came + went)
    head, question, nearest = reason.partition("; did you mean")
    history = f"it {since}" if since else f"vLLM {minor(tables[0])} to {minor(SHIPPED)} have it"
    return f"{head}; {history}{question}{nearest}"
