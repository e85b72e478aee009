"""Tables of a year's releases of vLLM: which one judges an image, and in which ones a name came or went."""

import re
from collections.abc import Callable
from functools import cache
from itertools import accumulate

import msgspec

from sparkd.base.lib import prepared, read_data
from sparkd.base.vllm.flag import SHIPPED, FlagTable

FILE = "vllm-releases.json"
"""A file below sparkd/data. `make flags` writes it: do not edit."""
_VERSION = re.compile(r"\Av?(0\.\d{1,3})(?:\.\d{1,3})?\Z|vllm[\w.-]{0,60}:v?(0\.\d{1,3})\.\d{1,3}(?!\d|\.|rc|\+)")
"""The minor version of a release: in a version, or in the tag of vLLM's image. No candidate or local build matches."""


class Earlier(FlagTable, frozen=True, forbid_unknown_fields=True):
    """A release, as its difference from the next one: flags, fields and variables that the next changed or removed."""

    gone: tuple[str, ...] = ()
    """Names that the next one added, so missing here: flags, FLAG.FIELD, and variables."""


@cache
def load_releases() -> tuple[FlagTable, ...]:
    """The last patch of each minor release, since earlier ones have the same flags. The newest, SHIPPED, is first."""
    return tuple(
        accumulate(
            msgspec.json.decode(read_data(FILE), type=prepared(tuple[Earlier, ...])), _undo_release, initial=SHIPPED
        )
    )


def _undo_release(later: FlagTable, earlier: Earlier) -> FlagTable:
    """The whole table of the release before `later`."""
    gone = {*earlier.gone}
    flags = {flag.name: flag for flag in (*later.flags, *earlier.flags) if flag.name not in gone}
    fields = {}
    for flag in {**later.fields, **earlier.fields}:
        merged = {field.name: field for field in (*later.fields.get(flag, ()), *earlier.fields.get(flag, ()))}
        if remaining := tuple(field for name, field in merged.items() if f"{flag}.{name}" not in gone):
            fields[flag] = remaining
    variables = sorted({*later.variables, *earlier.variables} - gone)
    return FlagTable(earlier.version, tuple(flags.values()), fields, tuple(variables))


def find_release(*texts: str) -> FlagTable:
    """The first release that a text names as a version, or as the tag of an image of vLLM; SHIPPED for other texts."""
    return known_release(*texts) or SHIPPED


def known_release(*texts: str) -> FlagTable | None:
    """The first release that such a text names; None where sparkd has a table of none of them."""
    for match in filter(None, (_VERSION.search(text.rpartition("/")[2]) for text in texts)):
        for table in load_releases():
            if minor_version(table) == (match[1] or match[2]):
                return table
    return None


def list_registered(flag: str) -> set[str]:
    """The values of the flag that any release registers."""
    known = (table.by_name.get(flag) for table in load_releases())
    return {name for each in known if each for name in each.registered}


def name_release(text: str) -> str:
    """The minor version of such a text, for a recipe's `image.vllm`; empty for any other."""
    table = known_release(text)
    return minor_version(table) if table else ""


def minor_version(table: FlagTable) -> str:
    """The version without its patch, such as 0.32."""
    return table.version.rpartition(".")[0]


def is_before(table: FlagTable, number: int) -> bool:
    """Whether the table is of an earlier release than 0.`number`."""
    return int(minor_version(table).rpartition(".")[2]) < number


def add_history(reason: str, has: Callable[[FlagTable], object]) -> str:
    """The reason, and before its `; did you mean` the releases in which its subject came and went.

    `has`: whether a release has the subject. Where none has it, the reason stays as it is.
    """
    tables = load_releases()[::-1]  # the oldest first: what that one has came with it, or earlier
    having = [number for number, table in enumerate(tables) if has(table)]
    if not having:
        return reason
    came = [f"came with {minor_version(tables[having[0]])}"] if having[0] else []
    went = [f"went with {minor_version(tables[having[-1] + 1])}"] if tables[having[-1]] is not SHIPPED else []
    since = " and ".join(came + went)
    head, question, nearest = reason.partition("; did you mean")
    history = f"it {since}" if since else f"vLLM {minor_version(tables[0])} to {minor_version(SHIPPED)} have it"
    return f"{head}; {history}{question}{nearest}"
