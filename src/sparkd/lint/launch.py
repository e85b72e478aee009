"""What the rules look at: one engine to be launched."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from contextlib import suppress

from msgspec import Struct, field

from sparkd.flags import JsonValue
from sparkd.lint.flag_words import Given
from sparkd.lint.model import UNKNOWN_MODEL, ModelLimits
from sparkd.lint.words import Flags

_AMOUNT = re.compile(r"(\d{1,15})(\.\d{1,6}(?=[kmgt]))?([kKmMgGtT]?)", re.ASCII)
_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
_QUOTED = re.compile(r'("(?:[^"\\]|\\.)*")')
_BARE_AMOUNT = re.compile(r"\b\d{1,15}(?:\.\d{1,6})?[kKmMgGtT]\b", re.ASCII)


class Launch(Struct, frozen=True):
    """Flags and environment as the engine gets them, and what is known around them."""

    flags: Flags
    env: Mapping[str, str] = field(default_factory=dict)
    gpu: bool = True
    kept: tuple[str, ...] = ()
    """Folders of the container that are there again at its next launch, and can be written."""
    pool_tokens: int | None = None
    """Size of the KV cache, where the recipe knows it."""
    model: ModelLimits = UNKNOWN_MODEL
    given: tuple[Given, ...] = ()
    """Each flag with all its values, where vLLM's own parser gets them."""
    extra: tuple[str, ...] = ()
    """Flags of a fork, as the recipe names them."""

    def amount(self, flag: str) -> int | None:
        """None where there is none, or none that is known."""
        return amount((self.flags.get(flag) or "").strip())

    def share(self, flag: str) -> float | None:
        with suppress(ValueError):
            return float((self.flags.get(flag) or "")[:40])
        return None

    def on(self, flag: str) -> bool:
        """Whether a switch is on: vLLM takes `--flag`, and no value behind it."""
        return flag in self.flags

    def table(self, flag: str) -> dict[str, JsonValue]:
        """A JSON flag with its fields that are given behind dots. Empty where it can't be read."""
        found = parsed(self.flags.get(flag) or "")
        table = dict(found) if isinstance(found, dict) else {}
        for name, text in self.flags.items():
            head, dot, key = name.partition(".")
            if head == flag and dot and text is not None:
                value = parsed(text)
                table[key.removesuffix("+")] = text if value is None else value
        return table


def amount(text: str) -> int | None:
    """A whole number as vLLM reads it: 1k is 1000, 1K is 1024. None where it is none."""
    match = _AMOUNT.fullmatch(text)
    if match is None:
        return None
    unit = _UNITS[match[3]]
    return int(float(match[1] + match[2]) * unit) if match[2] else int(match[1]) * unit


def parsed(text: str) -> JsonValue:
    """A JSON value; None where the text is none, or nests deeper than Python can follow."""
    with suppress(ValueError, RecursionError):
        value: JsonValue = json.loads(counted(text))
        return value
    return None


def counted(text: str) -> str:
    """JSON with 80g and the like written out, outside of quotes: vLLM takes them there."""
    parts = _QUOTED.split(text)
    parts[::2] = [_BARE_AMOUNT.sub(lambda match: str(amount(match[0]) or match[0]), part) for part in parts[::2]]
    return "".join(parts)
