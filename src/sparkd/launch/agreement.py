"""What the nodes of one engine must have alike, and where two of them differ. Pure: see `survey` for the look.

vLLM serves with different flags on its two ranks without a word, so sparkd compares.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from msgspec import Struct

from sparkd.host.weights import Weights
from sparkd.launch.plan import LaunchPlan
from sparkd.launch.shared import bounded, digest
from sparkd.lib.text import sanitize

UNCHECKED = "unchecked."
"""Begins the name of a value that may differ: it stands among the values, and not in the digest."""
IMAGE = ("image", "image.identity")
MOST_VALUES = 20_000
LONGEST_TEXT = 4096
LARGEST_BYTES = 8 << 20
MOST_ROWS = 40
NAME_WIDTH = 48
VALUE_WIDTH = 56
ABSENT = "-"

_ESCAPED_LIMIT = 10 * LONGEST_TEXT
"""The longest escape is \\UXXXXXXXX."""


class Seen(Struct, frozen=True):
    """What a look at the node adds to its plan."""

    image_identity: str
    weights: Weights
    script_sha256: str
    """Of `engine.script`; empty where the script is generated."""
    allow_image_difference: bool = False


class Agreement(Struct, frozen=True):
    values: Mapping[str, str]
    digest: str
    """Of all values but the unchecked ones: nodes may launch together when it is the same."""


class Difference(Struct, frozen=True):
    """A value that two nodes have unlike; empty where a node has no such value."""

    name: str
    own: str
    theirs: str

    @property
    def allowed(self) -> bool:
        return self.name.startswith(UNCHECKED)


def agreement(plan: LaunchPlan, seen: Seen) -> Agreement:
    values = dict(plan.shared)
    values["image.identity"] = seen.image_identity
    if seen.script_sha256:
        values["script.sha256"] = seen.script_sha256
    values |= {bounded(f"weights.{name}"): bounded(said) for name, said in seen.weights.files}
    if seen.allow_image_difference:
        values = {(UNCHECKED + name if name in IMAGE else name): said for name, said in values.items()}
    counted = ((name, said) for name, said in values.items() if not name.startswith(UNCHECKED))
    return Agreement(values, digest(counted))


def dump(values: Mapping[str, str]) -> bytes:
    """For the wire: one JSON object."""
    return json.dumps(dict(values), sort_keys=True, separators=(",", ":")).encode()


def parse(data: bytes) -> Mapping[str, str] | None:
    """What `dump` wrote; None where it is anything else, or out of bounds."""
    if len(data) > LARGEST_BYTES:
        return None
    try:
        found: object = json.loads(data)
    except (ValueError, RecursionError):
        return None
    if not isinstance(found, dict) or len(found) > MOST_VALUES:
        return None
    values = {name: said for name, said in found.items() if isinstance(said, str)}
    if len(values) < len(found) or any(len(text) > LONGEST_TEXT for item in values.items() for text in item):
        return None
    return values


def differences(own: Mapping[str, str], theirs: Mapping[str, str]) -> tuple[Difference, ...]:
    """By name, those that are allowed last."""
    unlike = sorted(name for name in own.keys() | theirs.keys() if own.get(name) != theirs.get(name))
    found = (Difference(name, _said(own, name), _said(theirs, name)) for name in unlike)
    return tuple(sorted(found, key=lambda one: one.allowed))


def _said(values: Mapping[str, str], name: str) -> str:
    said = values.get(name)
    return "" if said is None else said or '""'


def table(differences: Sequence[Difference], own_name: str, peer_name: str) -> tuple[str, ...]:
    """Aligned lines, the first with the nodes' names; none where nothing differs. Unequal parts stay in sight."""
    if not differences:
        return ()
    rows = [("", _line(own_name, VALUE_WIDTH), _line(peer_name, VALUE_WIDTH))]
    for one in differences[:MOST_ROWS]:
        own, theirs = pair(one, VALUE_WIDTH)
        rows.append((_line(one.name, NAME_WIDTH), own or ABSENT, theirs or ABSENT))
    first, second = (max(len(row[column]) for row in rows) for column in (0, 1))
    lines = [f"{name:<{first}}  {own:<{second}}  {theirs}" for name, own, theirs in rows]
    return (*lines, *_rest(len(differences) - MOST_ROWS, "and "))


def summary(differences: Sequence[Difference]) -> str:
    """A phrase for the line of an error; empty where nothing differs."""
    if not differences:
        return ""
    own, theirs = pair(differences[0], VALUE_WIDTH)
    first = f"{_line(differences[0].name, NAME_WIDTH)} is {own or 'not set'} here and {theirs or 'not set'} there"
    return "; and ".join((first, *_rest(len(differences) - 1, "")))


def _rest(count: int, before: str) -> tuple[str, ...]:
    return (f"{before}{count} more",) if count > 0 else ()


def _line(text: str, width: int) -> str:
    """Without its middle, where it is too long."""
    line = sanitize(text, _ESCAPED_LIMIT)
    half = width // 2
    return line if len(line) <= width else f"{line[: width - half - 1]}…{line[-half:]}"


def pair(one: Difference, width: int) -> tuple[str, str]:
    """Both values from shortly before the first character that differs."""
    own, theirs = sanitize(one.own, _ESCAPED_LIMIT), sanitize(one.theirs, _ESCAPED_LIMIT)
    same = next((i for i, (a, b) in enumerate(zip(own, theirs, strict=False)) if a != b), min(len(own), len(theirs)))
    return _from(own, same, width), _from(theirs, same, width)


def _from(line: str, place: int, width: int) -> str:
    """At most `width` characters of the line, with `place` among them."""
    if len(line) <= width:
        return line
    start = min(max(0, place - width // 2), len(line) - width)
    part = line[start : start + width]
    head = "…" if start else ""
    tail = "…" if start + width < len(line) else ""
    return head + part[len(head) : width - len(tail)] + tail


def warnings(own: Mapping[str, str], theirs: Mapping[str, str]) -> tuple[str, ...]:
    """A line for each version that both nodes tell, and not alike."""
    return tuple(
        f"{sanitize(name, 40)} is {sanitize(own[name], 100)} here and {sanitize(theirs[name], 100)} there"
        for name in sorted(own.keys() & theirs.keys())
        if own[name] != theirs[name]
    )
