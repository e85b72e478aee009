"""A recipe of another tool as it stands in its file, and what importing it has to say."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct, field

from sparkd import faults
from sparkd.recipes.document import Document, Key

Overrides = Mapping[str, str]
"""What `-o key=value` says, as text."""


class Unusable(Exception):  # noqa: N818  # a word about the recipe, not about sparkd
    """The recipe cannot be imported: the key that is at fault, and why."""

    def __init__(self, key: Key, reason: str) -> None:
        super().__init__(reason)
        self.key = key
        self.reason = reason


class Note(Struct, frozen=True):
    """What was left out, or is for a person to do; `line` of the file it was read from."""

    line: int
    text: str


class Source(Struct):
    """Typed access to the document: every fault names its key."""

    document: Document
    notes: list[Note] = field(default_factory=list)

    def line(self, key: Key) -> int:
        while key and key not in self.document.lines:
            key = key[:-1]
        return self.document.lines.get(key, 1)

    def note(self, key: Key, text: str) -> None:
        self.notes.append(Note(self.line(key), text))

    def has(self, key: str) -> bool:
        """Whether it is there and says something."""
        return self.document.data.get(key) not in (None, "", [], {}, False)

    def text(self, key: str) -> str:
        value = self.document.data.get(key)
        if value is None:
            return ""
        if isinstance(value, Mapping | list):
            raise self.fault((key,), value, "must be text")
        return str(value)

    def needed_text(self, key: str) -> str:
        text = self.text(key)
        if not text.strip():
            raise Unusable((key,), f"{key} is missing")
        return text

    def mapping(self, key: str) -> Mapping[str, object]:
        value = self.document.data.get(key) or {}
        if not isinstance(value, dict):
            raise self.fault((key,), value, "must be a mapping")
        return value

    def items(self, key: str) -> list[object]:
        value = self.document.data.get(key)
        return value if isinstance(value, list) else [] if value is None else [value]

    def count(self, key: str) -> int | None:
        value = self.document.data.get(key)
        if value is None:
            return None
        text = str(value)
        if isinstance(value, bool) or not text.isdecimal() or not text.isascii() or len(text) > 9:
            raise self.fault((key,), value, "must be a whole number")
        return int(text)

    @staticmethod
    def fault(key: Key, value: object, needed: str) -> Unusable:
        return Unusable(key, f"{faults.said(key, value)}: {needed}")


class Foreign(Struct, frozen=True):
    """What both formats say alike, templates filled in."""

    format: str
    """Name and version of the format, for people."""
    description: str
    image: str
    command: str
    """Text that the tool hands to bash in the container."""
    env: Mapping[str, str]
    container: Mapping[str, object]
    """Keys of schema 1's `container`."""
    nodes: tuple[int, int | None]
    """Fewest and most nodes."""
