"""Text from outside, made safe to print: a process may call itself anything."""

from __future__ import annotations


def harmless(text: str, limit: int = 200) -> str:
    """One line of at most `limit` characters in which nothing moves a cursor, hides or turns round.

    Control characters and what cannot be encoded read as their escape.
    """
    if len(text) <= limit and text.isprintable():
        return text
    line = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text[: limit + 1])
    return line if len(line) <= limit else f"{line[: limit - 1]}…"
