"""Errors that others have met, of known-errors.toml: lines of the engine and of NCCL, their meaning and remedy.

A client can make the engine log any text. So a line is cut before the search, the search is for plain words in order,
and no text of the line goes into an answer. No remedy does harm where the line was forged: messages of the kernel stand
in kernel-log.toml, and the engine's lines are not searched for them.
"""

from typing import Annotated

from msgspec import Meta, Struct, toml

from sparkd.base.lib import read_data

LINE_LIMIT = 4096
"""Characters that are searched."""
GAP = "…"
"""Stands for any text in a pattern."""
PORT_IN_USE = ("EADDRINUSE", "[Errno 98] Address already in use")
"""Patterns of an entry by which the agent, too, finds that another process has the port."""

Text = Annotated[str, Meta(min_length=1)]
Pattern = Annotated[str, Meta(min_length=9)]
"""A shorter pattern would fit any line."""


class KnownError(Struct, frozen=True, forbid_unknown_fields=True):
    patterns: Annotated[tuple[Pattern, ...], Meta(min_length=1)]
    """The line holds at least one of them."""
    meaning: Text
    remedy: Text
    source: Text
    """Who met it, and when."""

    @property
    def hint(self) -> str:
        return f"{self.meaning}: {self.remedy}"


TABLE = toml.decode(read_data("known-errors.toml"), type=dict[str, tuple[KnownError, ...]])["engine"]
"""Known errors in the order of the search."""


def explain(line: str) -> KnownError | None:
    """The first known error with a pattern that fits the line."""
    line = line[:LINE_LIMIT]
    return next((error for error in TABLE if any(_fits(pattern, line) for pattern in error.patterns)), None)


def _fits(pattern: str, line: str) -> bool:
    """Whether the line has the parts of the pattern in their order."""
    position = 0
    for words in pattern.split(GAP):
        position = line.find(words, position) + len(words)
        if position < len(words):
            return False
    return True
