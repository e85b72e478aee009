"""Text from outside, made safe to print: no terminal acts on it, and every encoding can write it."""

from __future__ import annotations

import re

_ANSI = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])")


def printable(text: str) -> str:
    """For log text: colours removed, and every other character that is not printable as its escape."""
    if text.isprintable():
        return text
    return _escaped(_ANSI.sub("", text).replace("\t", "    "))


def sanitize(text: str, limit: int = 200) -> str:
    """For names: one line of at most `limit` characters, every character that is not printable as its escape."""
    line = _escaped(text[: limit + 1])
    return line if len(line) <= limit else f"{line[: limit - 1]}…"


def _escaped(text: str) -> str:
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)
