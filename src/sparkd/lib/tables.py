"""What a command shows, as values: lines and tables. Plain text is made here; a terminal's is `commands.console`'s."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

GAP = "  "


class Table(NamedTuple):
    rows: Sequence[tuple[str, ...]]
    levels: Sequence[str] = ()
    """Of each row, as a check's level; a terminal shows it as a colour."""
    heading: bool = False
    """Whether the first row is one."""
    flexible: int = 1
    """How many columns, of the last ones, a narrow terminal may narrow."""
    one_line: bool = False
    """Whether a terminal cuts the last column instead of going on in the next line."""

    def __str__(self) -> str:
        """Columns as wide as their widest cell, whatever the terminal's width is."""
        widths = [max(len(cell) for cell in column) for column in zip(*self.rows, strict=True)]
        return "\n".join(GAP.join(map(str.ljust, row, widths)).rstrip() for row in self.rows)


Parts: TypeAlias = Sequence[str | Table]
"""In the order in which they are shown, each from a new line."""


def plain(parts: Parts) -> str:
    return "\n".join(str(part) for part in parts if isinstance(part, str) or part.rows)
