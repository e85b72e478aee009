"""Typed access to a foreign recipe, its overrides, and the template rules of both tools.

They interpret the same braces differently.
"""

from __future__ import annotations

import json
import re
import string
from collections.abc import Mapping
from pathlib import Path

from msgspec import Struct, field

from sparkd.base.lib.errors import UsageError
from sparkd.base.lib.text import did_you_mean, format_key
from sparkd.base.recipes.yaml import Document, Key
from sparkd.base.vllm.args import LONGEST_TEXT_BYTES as LONGEST
from sparkd.base.vllm.args import parse_count
from sparkd.tools.importers.variables import CommandError, mark

Overrides = Mapping[str, str]
"""Values of `-o key=value`, as text."""

_LONGEST_NUMBER = 300
_LONGEST_SPEC = 32
_SPEC = re.compile(r"[^\d{}]*\d{0,3}(?:[^\d{}]+\d{0,3})?[^\d{}]*")
"""Format specifications with widths below 1000, so that the result stays small."""
_CLOSED = re.compile(r"^.*\}", re.MULTILINE)
_PLACEHOLDER = re.compile(r"\{([^}\n]*)\}")
_BRACES = re.compile(r"\{\{|\}\}|\{[^{}]*\}|[{}]")
NAMED = re.compile(r"(?<!\$)\{[A-Za-z_]\w*\}")
"""A placeholder; ${NAME} is the shell's."""
_MASKED = {"{": "\0", "}": "\1"}


class Unusable(Exception):  # noqa: N818  # describes the recipe
    """The recipe cannot be imported: key and reason."""

    def __init__(self, key: Key, reason: str) -> None:
        super().__init__(reason)
        self.key = key
        self.reason = reason


class Note(Struct, frozen=True):
    """A part left out, or a step left to the user; `line` of the imported file."""

    line: int
    text: str
    is_missing: bool = False
    """Whether the recipe leads to no endpoint without it."""
    file: str = ""
    """That the line is of, where several are imported."""


def cut(step: object) -> str:
    """On one line."""
    text = " ".join((step if isinstance(step, str) else json.dumps(step, default=str)).split())
    return text if len(text) <= 200 else f"{text[:197]}..."


def as_mapping(value: object) -> Mapping[str, object]:
    """Empty where it is none."""
    return value if isinstance(value, dict) else {}


class Source(Struct):
    document: Document
    beside: Path | None = None
    """The file itself, where it is one: what was published with it lies beside it."""
    notes: list[Note] = field(default_factory=list)
    file: str = ""
    """That the document is of, where several are imported."""
    container: str = ""
    """Of this machine, that it was read off, as a shell's word; it may still run."""
    is_running_here: bool = False
    """Read off a container of this machine, which has its image."""

    def note(self, key: Key, text: str, *, is_missing: bool = False) -> None:
        self.notes.append(Note(self.document.line(key), text, is_missing, self.file))

    def miss(self, key: Key, text: str) -> None:
        self.note(key, text, is_missing=True)

    def has(self, key: str) -> bool:
        """Whether the key exists with a value that is not empty."""
        return self.document.data.get(key) not in (None, "", [], {}, False)

    def text(self, key: str) -> str:
        value = self.document.data.get(key)
        if isinstance(value, Mapping | list):
            raise self.fault((key,), value, "must be text")
        return "" if value is None else str(value)

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
        number = parse_count(value, 999_999_999)
        if number is None:
            raise self.fault((key,), value, "must be a whole number")
        return number

    @staticmethod
    def fault(key: Key, value: object, needed: str) -> Unusable:
        return Unusable(key, f"{format_key(key, value)}: {needed}")


class Foreign(Struct, frozen=True):
    """A recipe of another tool, with its templates filled in."""

    format: str
    """Name and version of the format, for people."""
    description: str
    image: str
    command: str
    """Bash command that the tool runs in the container."""
    env: Mapping[str, str]
    container: Mapping[str, object]
    """Keys of schema 1's `container`."""
    nodes: tuple[int, int | None]
    """Fewest and most nodes."""
    revision: str = ""
    """Of the model on Hugging Face."""
    vllm: str = ""
    """Release that the image has, where its name does not say it."""
    secrets: Mapping[str, str] = {}
    """File by variable."""
    executor: str = "mp"
    caches: Mapping[str, str] = {}
    expect: Mapping[str, object] = {}
    """What its publisher measured."""


class Values(Struct):
    """Values of placeholders; records which were used."""

    values: Mapping[str, object]
    used: set[str] = field(default_factory=set)

    def get(self, name: str) -> object:
        self.used.add(name)
        return self.values.get(name)

    def check_overrides(self, overrides: Overrides, command: str) -> None:
        """Raises Unusable for an override that changes nothing, nor is a shell's variable or a blank in the command."""
        for name in overrides:
            if name not in self.used and not re.search(rf"(?:\$\{{?|<){re.escape(name)}\b", command):
                known = did_you_mean(name, sorted(self.used))
                raise Unusable((), f"-o {name}: nothing in its command is filled in by that name{known}")


def parse_overrides(words: list[str]) -> Overrides:
    """Raises UsageError."""
    values: dict[str, str] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not name or not equals:
            raise UsageError(f"-o {word}: must be KEY=VALUE, such as -o port=9000")
        values[name] = value
    return values


def whole_number(text: str) -> int:
    """`int` with a bound on the length. Raises ValueError."""
    if len(text) > _LONGEST_NUMBER:
        raise ValueError("too long")
    return int(text)


def format_template(template: str, values: Values) -> str:
    """Python's `str.format`, as in eugr's run-recipe.py: {{ and }} are braces, an unknown name is a fault."""
    formatter, text = string.Formatter(), ""
    try:
        for literal, name, spec, conversion in formatter.parse(_bounded(template)):
            text += literal
            if name is not None:
                text += _field(formatter, name, spec or "", conversion, values)
            _bounded(text, " once it is filled in")
    except ValueError as error:
        raise CommandError(f"{error}: a brace that is meant as one is written twice") from None
    return text


def _field(formatter: string.Formatter, name: str, spec: str, conversion: str | None, values: Values) -> str:
    shown = "{" + name[:60] + "}"
    if name not in values.values:
        values.used.add(name)
        raise CommandError(f"{shown} is given no value; a brace that is meant as one is written twice")
    # c is the character of a number, which may be none that can be written.
    if len(spec) > _LONGEST_SPEC or not _SPEC.fullmatch(spec) or spec.endswith("c"):
        raise CommandError(f"{shown} has a format that is not taken: {spec[:60]}")
    value = formatter.convert_field(values.get(name), conversion)
    try:
        return format(value, spec)
    except (TypeError, ValueError, OverflowError) as error:
        raise CommandError(f"{shown}: {error}") from None


def _bounded(text: str, when: str = "") -> str:
    if len(text) > LONGEST:
        raise CommandError(f"is longer than {LONGEST} characters{when}")
    return text


def substitute(template: str, values: Values) -> str:
    """sparkrun's rule: replaces {name} by its value until nothing changes. A name without a value gets a mark.

    Braces of the template that enclose braces are text. {{ makes all doubled braces of the template single ones.
    """
    times = 1 if "{{" in template else 2

    def mask(match: re.Match[str]) -> str:
        found = match[0]
        doubled = found in ("{{", "}}")
        return _MASKED[found[0]] * (times if doubled else 1) if doubled or len(found) == 1 else found

    text = _BRACES.sub(mask, _bounded(template))
    for _ in range(10):
        before, text = text, _substitute_once(text, values)
        if text == before:
            break
    else:
        raise CommandError("a placeholder stands for itself: filling in has no end")
    text = NAMED.sub(lambda left: mark(left[0]), text)
    return text.replace(_MASKED["{"], "{").replace(_MASKED["}"], "}")


def _substitute_once(text: str, values: Values) -> str:
    size = len(text)

    def value(match: re.Match[str]) -> str:
        nonlocal size
        found = values.get(match[1].strip("{"))
        new = match[0] if found is None else str(found)
        size += len(new) - len(match[0])
        if size > LONGEST:
            raise CommandError(f"is longer than {LONGEST} characters once it is filled in")
        return new

    # Limited to the part of each line up to its last brace, because many unclosed braces would take minutes.
    return _CLOSED.sub(lambda line: _PLACEHOLDER.sub(value, line[0]), text)
