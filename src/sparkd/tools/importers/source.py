"""Typed access to a foreign recipe, and its overrides."""

import json
from collections.abc import Mapping
from pathlib import Path

from msgspec import Struct, field

from sparkd.base.lib.errors import UsageError
from sparkd.base.lib.text import format_key
from sparkd.base.recipes.yaml import Document, Key
from sparkd.base.vllm.args import parse_count

Overrides = Mapping[str, str]
"""Values of `-o key=value`, as text."""

COMMAND = ("command",)
"""The key of the command that starts the engine."""


class UnusableRecipeError(Exception):
    """The recipe cannot be imported: key and reason."""

    def __init__(self, key: Key, reason: str) -> None:
        super().__init__(reason)
        self.key = key
        self.reason = reason


class Note(Struct, frozen=True):
    """A part that the import leaves out, or a step that it leaves to the user. `line`: in the imported file."""

    line: int
    text: str
    is_missing: bool = False
    """Whether the recipe leads to no endpoint without it."""
    file: str = ""
    """The file of the line, where several are imported."""


def shorten(step: object) -> str:
    """The step as text on one line, of at most 200 characters."""
    text = " ".join((step if isinstance(step, str) else json.dumps(step, default=str)).split())
    return text if len(text) <= 200 else f"{text[:197]}..."


def as_mapping(value: object) -> Mapping[str, object]:
    """The value itself, or an empty mapping where it is no mapping."""
    return value if isinstance(value, dict) else {}


class Source(Struct):
    """What is imported, and the notes for people that reading it leaves."""

    document: Document
    path: Path | None = None
    """The recipe's path, where it is a file: what was published with it lies beside it."""
    notes: list[Note] = field(default_factory=list)
    file: str = ""
    """The document's file, where several are imported."""
    container: str = ""
    """The container of this machine that it was read from, quoted for a shell. It may still run."""
    has_local_image: bool = False
    """Whether it was read from a container of this machine, with that container's image."""

    def note(self, key: Key, text: str, *, is_missing: bool = False) -> None:
        self.notes.append(Note(self.document.line(key), text, is_missing, self.file))

    def need(self, key: Key, text: str) -> None:
        """Note a part without which the recipe leads to no endpoint."""
        self.note(key, text, is_missing=True)

    def has(self, key: str) -> bool:
        """Whether the key exists with a value that is not empty."""
        return self.document.data.get(key) not in (None, "", [], {}, False)

    def text(self, key: str) -> str:
        """The value as text. Raises UnusableRecipeError for a list or a mapping."""
        value = self.document.data.get(key)
        if isinstance(value, Mapping | list):
            raise self.fault((key,), value, "must be text")
        return "" if value is None else str(value)

    def needed_text(self, key: str) -> str:
        text = self.text(key)
        if not text.strip():
            raise UnusableRecipeError((key,), f"{key} is missing")
        return text

    def mapping(self, key: str) -> Mapping[str, object]:
        value = self.document.data.get(key) or {}
        if not isinstance(value, dict):
            raise self.fault((key,), value, "must be a mapping")
        return value

    def items(self, key: str) -> list[object]:
        """The list; of a single value, a list with it."""
        value = self.document.data.get(key)
        return value if isinstance(value, list) else [] if value is None else [value]

    def all_items(self, key: str) -> list[object]:
        """The items, also below `runtime_config`, to which sparkrun moves keys that it does not know."""
        moved = as_mapping(self.document.data.get("runtime_config")).get(key)
        return [*self.items(key), *(moved if isinstance(moved, list) else [])]

    def count(self, key: str) -> int | None:
        """The value as a number, None without one. Raises UnusableRecipeError for any other value."""
        value = self.document.data.get(key)
        if value is None:
            return None
        number = parse_count(value, 999_999_999)
        if number is None:
            raise self.fault((key,), value, "must be a whole number")
        return number

    @staticmethod
    def fault(key: Key, value: object, needed: str) -> UnusableRecipeError:
        return UnusableRecipeError(key, f"{format_key(key, value)}: {needed}")


class ForeignRecipe(Struct, frozen=True):
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
    """The model's revision on Hugging Face."""
    vllm: str = ""
    """The image's release of vLLM, where its name does not say it."""
    secrets: Mapping[str, str] = {}
    """The file of each secret, by its variable."""
    executor: str = "mp"
    caches: Mapping[str, str] = {}
    expect: Mapping[str, object] = {}
    """What its publisher measured."""


def parse_overrides(words: list[str]) -> Overrides:
    """The values by key. Raises UsageError for a word without `=`."""
    values: dict[str, str] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not name or not equals:
            raise UsageError(f"-o {word}: must be KEY=VALUE, such as -o port=9000")
        values[name] = value
    return values
