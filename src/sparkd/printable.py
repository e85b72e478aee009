"""Text from outside as a line that no terminal acts on."""

from __future__ import annotations

import re

_ANSI = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])")


def printable(text: str) -> str:
    """Colours removed, every other character that a terminal would act on (escape, bidi override, ...) written out."""
    if text.isprintable():
        return text
    text = _ANSI.sub("", text).replace("\t", "    ")
    return text if text.isprintable() else "".join(c if c.isprintable() else _written_out(c) for c in text)


def _written_out(char: str) -> str:
    return char.encode("unicode_escape").decode("ascii")
