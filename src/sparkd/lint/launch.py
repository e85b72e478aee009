"""What the rules look at: one engine to be launched."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from decimal import Decimal

from sparkd.flags import JsonValue
from sparkd.lint.model import UNKNOWN_MODEL, ModelLimits
from sparkd.lint.words import Flags

_AMOUNT = re.compile(r"(\d{1,15}(?:\.\d{1,6}(?=\D))?)([kKmMgG]?)", re.ASCII)
_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


@dataclass(frozen=True)
class Launch:
    """Flags and environment as the engine gets them, and what is known around them."""

    flags: Flags
    env: Mapping[str, str] = field(default_factory=dict)
    gpu: bool = True
    kept: tuple[str, ...] = ()
    """Folders of the container that are there again at its next launch, and can be written."""
    pool_tokens: int | None = None
    """Size of the KV cache, where the recipe knows it."""
    model: ModelLimits = UNKNOWN_MODEL

    def amount(self, flag: str) -> int | None:
        """A whole number as vLLM reads it: 1k is 1000, 1K is 1024. None where there is none."""
        match = _AMOUNT.fullmatch(self.flags.get(flag) or "")
        return int(Decimal(match[1]) * _UNITS[match[2]]) if match else None

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


def parsed(text: str) -> JsonValue:
    """A JSON value; None where the text is none, or nests deeper than Python can follow."""
    with suppress(ValueError, RecursionError):
        value: JsonValue = json.loads(text)
        return value
    return None
