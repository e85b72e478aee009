"""A flag of `vllm serve`: what it is called, and what its parser takes. All flags are in flag_table_vllm.py."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Literal

from msgspec import Struct

from sparkd.lint.launch import counted
from sparkd.nearest import did_you_mean

Kind = Literal[
    "switch",
    "text",
    "text or object",
    "int",
    "amount",
    "amount or auto",
    "float",
    "json",
    "object",
]
"""What becomes of one value. `amount`: 8k and 8K as well; `text or object`: an object where there are braces."""
Count = Literal["one", "at most one", "at least one"]


class Flag(Struct, frozen=True):
    name: str
    kind: Kind
    count: Count = "one"
    """How many values stand behind it, where it is no switch."""
    aliases: tuple[str, ...] = ()
    """Other names, with their dashes."""
    negative: bool = False
    """Whether there is a --no- form."""
    optional: bool = False
    """Whether nothing, and the word None, stand for no value."""
    choices: tuple[str, ...] = ()
    folds: bool = False
    """Whether a choice may be in capitals, and with dashes."""
    repeats: bool = False
    """Whether each further one adds to those before; else the last wins."""

    def miscounted(self, values: int, joined: bool) -> str:
        """Why it can't have so many values, `joined` where the one is behind `=`; empty where it can."""
        if self.kind == "switch":
            off = ", and --no- before its name is off" if self.negative else ""
            return f"is a switch and takes no value: bare it is on{off}" if values or joined else ""
        if not values and self.count != "at most one":
            return "needs a value"
        if values > 1 and self.count != "at least one":
            return f"takes one value, and {values} are given"
        return ""

    def mistyped(self, value: str) -> str:
        """Why no vLLM of this version can read the value; empty where it can."""
        if self.optional and value in ("", "None"):
            return ""
        try:
            _READERS[self.kind](value)
        except (ValueError, OverflowError, RecursionError):
            return f"needs {_NEEDED[self.kind]}, and {value[:60]!r} is none"
        return ""

    def unlisted(self, value: str) -> str:
        """Why the value is none of its choices; empty where it is one. A fork may have more of them."""
        if not self.choices or (self.optional and value in ("", "None")):
            return ""
        folded = value.lower().replace("-", "_") if self.folds else value
        said = str(int(value)) if self.kind == "int" else folded
        if said in self.choices:
            return ""
        known = did_you_mean(folded, self.choices) or f": {', '.join(self.choices[:8])}"
        return f"has no choice {value[:60]!r} in vLLM's own{known}"


def _amount(text: str) -> int:
    """As vLLM reads it: 1k is 1000, 25.6k is 25600, 1K is 1024, 1.5K is none."""
    text = text.strip()
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([kKmMgGtT])", text)
    if match is None:
        return int(text)
    power = "kmgt".index(match[2].lower()) + 1
    return int(float(match[1]) * 1000**power) if match[2].islower() else int(match[1]) << 10 * power


def _amount_or_auto(text: str) -> int:
    return -1 if text.strip().lower() == "auto" else _amount(text)


def _object(text: str) -> None:
    if not isinstance(json.loads(counted(text)), dict):
        raise ValueError("no object")


def _text_or_object(text: str) -> None:
    if re.match(r"(?s)^\s*{.*}\s*$", text):
        json.loads(text)


_READERS: dict[Kind, Callable[[str], object]] = {
    "switch": str,
    "text": str,
    "text or object": _text_or_object,
    "int": int,
    "amount": _amount,
    "amount or auto": _amount_or_auto,
    "float": float,
    "json": json.loads,
    "object": _object,
}
_NEEDED: dict[Kind, str] = {
    "switch": "nothing",
    "text": "text",
    "text or object": "text, or a JSON object",
    "int": "a whole number",
    "amount": "a whole number, such as 8192 or 8k",
    "amount or auto": "a whole number, such as 8192 or 8k, or auto",
    "float": "a number",
    "json": "JSON",
    "object": "a JSON object",
}
