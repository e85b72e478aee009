"""The table of the flags of `vllm serve`, as its own parser has them, and of the fields in their JSON.

Flags, fields and kinds of values judge a value as vLLM would read it.
"""

import json
import re
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from functools import cached_property
from typing import Literal

import msgspec
from msgspec import Struct

from sparkd.base.lib import read_data
from sparkd.base.lib.text import did_you_mean
from sparkd.base.vllm.args import JsonValue

_QUOTED = re.compile(r'("(?:[^"\\]|\\.)*+(?:"|\\?\Z))', re.DOTALL)
"""A text in quotes; one without an end goes to the end, or the search would begin again at each escaped quote."""
_BARE_AMOUNT = re.compile(r"\b\d{1,15}(?:\.\d{1,6})?[kKmMgGtT]\b", re.ASCII)
_WORD_BREAK = re.compile("[_-]")

SHORTEST_TYPO = 8
"""Shorter names that differ in one letter may both exist."""
SHORTEST_WORD = 3
"""A shorter word of a name with another letter is another word: public scripts have VLLM_TP_SIZE."""

Kind = Literal["switch", "text", "text or object", "int", "amount", "amount or auto", "float", "json", "object"]
"""Type of one value. `amount` accepts 8k and 8K; `text or object` is an object if in braces."""
Arity = Literal["one", "at most one", "at least one"]


class Flag(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    name: str
    kind: Kind
    count: Arity = "one"
    """Number of values; not for a switch."""
    aliases: tuple[str, ...] = ()
    """Other names, with their dashes."""
    negative: bool = False
    """Whether a --no- form exists."""
    optional: bool = False
    """Whether the empty text and the word None stand for no value."""
    choices: tuple[str, ...] = ()
    folds: bool = False
    """Whether choices ignore case and accept dashes for underscores."""
    registered: tuple[str, ...] = ()
    """Names that vLLM's parser does not check, and that fail later unless a plugin registers them."""

    def wrong_arity(self, value_count: int, joined: bool) -> str:
        """Why this number of values is wrong (`joined`: one after `=`); empty if right."""
        if self.kind == "switch":
            off = ", and --no- before its name is off" if self.negative else ""
            return f"is a switch and takes no value: bare it is on{off}" if value_count or joined else ""
        if not value_count and self.count != "at most one":
            return "needs a value"
        if value_count > 1 and self.count != "at least one":
            return f"takes one value, and {value_count} are given"
        return ""

    def wrong_type(self, value: str) -> str:
        """Why vLLM of this version can't read the value; empty if it can."""
        if self.optional and value in ("", "None"):
            return ""
        reader, needed = _READERS[self.kind]
        try:
            reader(value)
        except (ValueError, OverflowError, RecursionError):
            return f"needs {needed}, and {value[:60]!r} is none"
        return ""

    def not_a_choice(self, value: str) -> str:
        """Why the value is not a choice of the flag; empty if it is one. A fork may have more choices."""
        if not self.choices or (self.optional and value in ("", "None")):
            return ""
        folded = value.lower().replace("-", "_") if self.folds else value
        choice = str(int(value)) if self.kind == "int" and not self.wrong_type(value) else folded
        if choice in self.choices:
            return ""
        known = did_you_mean(folded, self.choices) or f": {', '.join(self.choices[:8])}"
        return f"has no choice {value[:60]!r} in vLLM's own{known}"


class Field(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A field of a flag's JSON, such as `pass_config.fuse_norm_quant`."""

    name: str
    takes: str
    """Kinds of JSON values, with blanks between them. Text means any text."""
    choices: tuple[str, ...] = ()
    folds: bool = False
    """Whether choices ignore case."""

    def wrong_value(self, value: JsonValue) -> str:
        """Why vLLM of this version refuses the value; empty if it takes it. Its numbers and booleans may be text."""
        if not _list_kinds(value).isdisjoint(self.takes.split()):
            return ""
        if isinstance(value, str) and self.choices:
            if value in self.choices or (self.folds and value.lower() in map(str.lower, self.choices)):
                return ""
            known = did_you_mean(value.upper() if self.folds else value, self.choices)
            return f"has no choice {value[:60]!r} in vLLM's own{known or ': ' + ', '.join(self.choices[:8])}"
        needed = " or ".join(kind for kind in self.takes.split() if kind != "null") or f"one of {self.choices[:8]}"
        return f"needs {needed}, and {json.dumps(value)[:60]} is none"


def _list_kinds(value: JsonValue) -> set[str]:
    """All kinds as which vLLM may read the value: 1 is a bool, too, and a text may be a number."""
    if isinstance(value, bool):
        return {"bool"}
    if value in (0, 1):
        return {"bool", "int", "float"}
    if isinstance(value, int | float):
        return {"int", "float"} if isinstance(value, int) or value.is_integer() else {"float"}
    if isinstance(value, str):
        with suppress(ValueError, RecursionError):
            parsed = json.loads(value.lower())
            return {"text"} | (_list_kinds(parsed) if isinstance(parsed, bool | int | float) else set())
        return {"text"}
    return {"null" if value is None else "list" if isinstance(value, list) else "object"}


def misprint_of(name: str, known: Iterable[str]) -> str:
    """The known name that differs by one letter: wrong, missing, extra, or swapped with its neighbour; else empty."""
    return next((right for right in known if _differs_by_one(name, right)), "") if len(name) >= SHORTEST_TYPO else ""


def _differs_by_one(typed: str, known: str) -> bool:
    """Compare what follows the common beginning. A letter that replaces another must be in a word of some length."""
    pairs = enumerate(zip(typed, known, strict=False))
    start = next((place for place, (a, b) in pairs if a != b), min(len(typed), len(known)))
    rest, known_rest = typed[start:], known[start:]
    if any(letter.isdigit() for letter in rest[:1] + known_rest[:1]):  # another size or number is another flag
        return False
    if len(typed) == len(known) and rest[1:] == known_rest[1:]:
        word = _WORD_BREAK.split(known[:start])[-1] + _WORD_BREAK.split(known_rest)[0]
        return len(word) >= SHORTEST_WORD
    return rest[1:] == known_rest or rest == known_rest[1:] or rest[1::-1] + rest[2:] == known_rest


def parse_amount(text: str) -> int | None:
    """A count as vLLM reads it; None if it is unreadable, negative or out of bounds."""
    with suppress(ValueError, OverflowError):
        number = _read_amount(text) if text.isascii() and len(text) <= 23 else -1
        return number if number >= 0 else None
    return None


def parse_json(text: str) -> JsonValue:
    """A JSON value; None for other text, and beyond Python's recursion limit."""
    with suppress(ValueError, RecursionError):
        value: JsonValue = json.loads(expand_amounts(text))
        return value
    return None


def expand_amounts(text: str) -> str:
    """JSON with amounts such as 80g written out (except in quotes), which vLLM accepts."""
    parts = _QUOTED.split(text)
    parts[::2] = [_BARE_AMOUNT.sub(lambda match: str(parse_amount(match[0]) or match[0]), part) for part in parts[::2]]
    return "".join(parts)


def _read_amount(text: str) -> int:
    """A count with its unit: 1k is 1000, 25.6k is 25600, 1K is 1024, 1.5K is invalid."""
    text = text.strip()
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([kKmMgGtT])", text)
    if match is None:
        return int(text)
    power = "kmgt".index(match[2].lower()) + 1
    return int(float(match[1]) * 1000**power) if match[2].islower() else int(match[1]) << 10 * power


def _check_object(text: str) -> None:
    if not isinstance(json.loads(expand_amounts(text)), dict):
        raise ValueError("no object")


def _check_text_or_object(text: str) -> None:
    if re.match(r"(?s)^\s*{.*}\s*$", text):
        json.loads(text)


_READERS: dict[Kind, tuple[Callable[[str], object], str]] = {
    "switch": (str, "nothing"),
    "text": (str, "text"),
    "text or object": (_check_text_or_object, "text, or a JSON object"),
    "int": (int, "a whole number"),
    "amount": (_read_amount, "a whole number, such as 8192 or 8k"),
    "amount or auto": (
        lambda text: -1 if text.strip().lower() == "auto" else _read_amount(text),
        "a whole number, such as 8192 or 8k, or auto",
    ),
    "float": (float, "a number"),
    "json": (json.loads, "JSON"),
    "object": (_check_object, "a JSON object"),
}
"""Reader of each kind, as in vLLM, and the requirement in words."""


class FlagTable(Struct, frozen=True, forbid_unknown_fields=True, dict=True):  # dict: holds its cached properties
    version: str
    """vLLM's. Only people read it: nothing depends on its number."""
    flags: tuple[Flag, ...]
    fields: Mapping[str, tuple[Field, ...]]
    """Fields by the flag whose JSON has them."""
    variables: tuple[str, ...] = ()
    """Variables of the environment, as vllm.envs has them."""
    image: str = ""
    """The image whose own vLLM has all that; empty for the table that comes with sparkd."""
    unanswered: str = ""
    """The image whose own vLLM was queried, and gave no table."""
    mounted: bool = False
    """Whether the launch mounts what may be another vLLM than the image's."""

    @cached_property
    def by_name(self) -> dict[str, Flag]:
        """Flags by name, --no- form and other long names."""
        negatives = {f"no-{flag.name}": flag for flag in self.flags if flag.negative}
        long_names = {name[2:]: flag for flag in self.flags for name in flag.aliases if name.startswith("--")}
        return {flag.name: flag for flag in self.flags} | negatives | long_names

    def has(self, name: str) -> bool:
        """Whether it has this flag, this FLAG.FIELD, or this variable."""
        flag, dot, field = name.partition(".")
        return name in self.variables or (field in self.fields_by_name.get(flag, {}) if dot else flag in self.by_name)

    @cached_property
    def fields_by_name(self) -> dict[str, dict[str, Field]]:
        return {flag: {field.name: field for field in fields} for flag, fields in self.fields.items()}

    @property
    def vllm(self) -> str:
        """The vLLM that has these flags, for use in a sentence."""
        return f"the vLLM in {self.image}" if self.image else f"vLLM {self.version}"

    @property
    def judged_by(self) -> str:
        """A phrase for people that names the table by which a launch was judged."""
        if self.image:
            return f"judged by {self.vllm} ({self.version})"
        if self.unanswered:
            return (
                f"judged by the table of {self.vllm}: the vLLM in {self.unanswered} gave none\n"
                "nothing is to be done, or to query it again at the next start:\n"
                "  sudo rm /var/lib/sparkd/vllm-tables.json"
            )
        why = "a mount may bring another than the image's" if self.mounted else "the image's own was not queried"
        return f"judged by the table of {self.vllm}: {why}"


FILE = "vllm-flags.json"
"""Below sparkd/data. `make flags` writes it: do not edit."""
SHIPPED = msgspec.json.decode(read_data(FILE), type=FlagTable)
SHORT = {alias: flag.name for flag in SHIPPED.flags for alias in flag.aliases if not alias.startswith("--")}
"""Short forms, such as -tp."""
