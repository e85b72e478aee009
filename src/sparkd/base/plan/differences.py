"""Where the values of two nodes, or of two starts, differ, in lines for people."""

from collections.abc import Mapping, Sequence

from msgspec import Struct

from sparkd.base.lib.text import Table, sanitize
from sparkd.base.plan.agreement import LONGEST_TEXT, UNCHECKED

MOST_ROWS = 40
NAME_WIDTH = 48
VALUE_WIDTH = 56
ABSENT = "-"
_ESCAPED_LIMIT = 10 * LONGEST_TEXT
"""Characters of a text whose characters all are escaped: the longest escape is \\UXXXXXXXX."""


class Difference(Struct, frozen=True):
    """A value that differs between two nodes; empty where a node has no such value."""

    name: str
    own: str
    theirs: str

    @property
    def allowed(self) -> bool:
        return self.name.startswith(UNCHECKED)


def compare_values(own: Mapping[str, str], theirs: Mapping[str, str]) -> tuple[Difference, ...]:
    """Values that differ, sorted by name, the allowed ones last."""
    names = sorted(name for name in own.keys() | theirs.keys() if own.get(name) != theirs.get(name))
    differences = (Difference(name, _quote_empty(own, name), _quote_empty(theirs, name)) for name in names)
    return tuple(sorted(differences, key=lambda difference: difference.allowed))


def _quote_empty(values: Mapping[str, str], name: str) -> str:
    """The value, with an empty one as two quotes; empty where there is none."""
    return (values[name] or '""') if name in values else ""


def format_table(differences: Sequence[Difference], own_name: str, peer_name: str) -> tuple[str, ...]:
    """A table in aligned lines, the nodes' names first. Each value is cut so that its first difference is visible."""
    if not differences:
        return ()
    rows = [("", _shorten(own_name, VALUE_WIDTH), _shorten(peer_name, VALUE_WIDTH))]
    for difference in differences[:MOST_ROWS]:
        own, theirs = diff_excerpt(difference)
        rows.append((_shorten(difference.name, NAME_WIDTH), own or ABSENT, theirs or ABSENT))
    return (*str(Table(rows)).split("\n"), *_format_rest(len(differences) - MOST_ROWS, "and "))


def format_summary(differences: Sequence[Difference]) -> str:
    """A phrase for an error line; empty without differences."""
    if not differences:
        return ""
    first, *others = differences
    own, theirs = diff_excerpt(first)
    sentence = f"{_shorten(first.name, NAME_WIDTH)} is {own or 'not set'} here and {theirs or 'not set'} there"
    return "; and ".join((sentence, *_format_rest(len(others), "")))


def _format_rest(count: int, prefix: str) -> tuple[str, ...]:
    return (f"{prefix}{count} more",) if count > 0 else ()


def _shorten(text: str, width: int) -> str:
    """Cuts the middle out of a long text."""
    line = sanitize(text, _ESCAPED_LIMIT)
    half = width // 2
    return line if len(line) <= width else f"{line[: width - half - 1]}…{line[-half:]}"


def diff_excerpt(difference: Difference) -> tuple[str, str]:
    """Both values, cut to the part around their first difference."""
    own, theirs = sanitize(difference.own, _ESCAPED_LIMIT), sanitize(difference.theirs, _ESCAPED_LIMIT)
    start = next((i for i, (a, b) in enumerate(zip(own, theirs, strict=False)) if a != b), min(len(own), len(theirs)))
    return _cut_around(own, start), _cut_around(theirs, start)


def _cut_around(line: str, place: int) -> str:
    """The part of the line around position `place`, at most VALUE_WIDTH characters."""
    width = VALUE_WIDTH
    if len(line) <= width:
        return line
    start = min(max(0, place - width // 2), len(line) - width)
    part = line[start : start + width]
    head = "…" if start else ""
    tail = "…" if start + width < len(line) else ""
    return head + part[len(head) : width - len(tail)] + tail


def compare_versions(own: Mapping[str, str], theirs: Mapping[str, str]) -> tuple[str, ...]:
    """A line for each version that both nodes report and that differs."""
    return tuple(
        f"{sanitize(name, 40)} is {sanitize(own[name], 100)} here and {sanitize(theirs[name], 100)} there"
        for name in sorted(own.keys() & theirs.keys())
        if own[name] != theirs[name]
    )
