"""Tables, a live screen and questions: by rich on a terminal, as plain text elsewhere.

Nothing is read as rich's markup: every cell is a Text, in which a control character is written out.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import sys
from collections.abc import Iterable, Sequence
from itertools import zip_longest
from typing import TYPE_CHECKING, Self, TextIO

from sparkd.base.lib.errors import UsageError
from sparkd.base.lib.text import GAP, Parts, Table, plain, printable

if TYPE_CHECKING:
    from rich.console import Console

STYLES = {"ok": "green", "warn": "yellow", "block": "bold red", "unknown": "magenta", "skipped": "dim"}
"""Styles of rich, by the level of a row."""
LEAST_WIDTH = 16
"""A flexible column is at least this wide. A terminal too narrow for that breaks the line itself."""


def on_terminal() -> bool:
    """Whether stdout is a terminal that can move its cursor."""
    return sys.stdout.isatty() and os.environ.get("TERM", "dumb") not in ("dumb", "unknown")


def show(parts: Parts) -> None:
    """Print texts and tables to stdout."""
    if not sys.stdout.isatty():
        print(plain(parts), flush=True)
        return
    for part in parts:
        if isinstance(part, str):
            print(part, flush=True)
        elif part.rows:
            _show_table(part)


def show_json(**fields: object) -> None:
    """Print one object. `schema` is 1 until a key changes its meaning. An error is one line, as all JSON of `logs`."""
    print(json.dumps({"schema": 1, **fields}, indent=None if "error" in fields else 1), flush=True)


def show_table(table: Table, json_key: str, *, as_json: bool) -> None:
    """Print a table that has a heading. As JSON, `json_key` has an object for each row, by the heading's words."""
    if not as_json:
        show([table])
        return
    headings, *rows = table.rows
    names = [re.sub(r"\W+", "_", heading.lower()) or "note" for heading in headings]
    show_json(**{json_key: [dict(zip(names, row, strict=True)) for row in rows]})


def add_json(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def make_console(file: TextIO, columns: int | None = None) -> Console:
    """Make rich's console. `columns`: None for those of the terminal."""
    from rich.console import Console

    # On a dumb terminal rich uses a width only together with a height.
    return Console(file=file, width=columns, height=columns and 25, markup=False, emoji=False, highlight=False)


def _show_table(table: Table) -> None:
    """Print a table. Only the flexible columns become narrower, down to LEAST_WIDTH; then the terminal breaks lines."""
    from rich.cells import cell_len
    from rich.table import Table as RichTable
    from rich.text import Text

    cells = [[Text(printable(cell)) for cell in row] for row in table.rows]
    fixed_columns = len(cells[0]) - table.flexible
    fixed_width = sum(max(cell_len(row[column].plain) for row in cells) + len(GAP) for column in range(fixed_columns))
    least_width = fixed_width + table.flexible * (LEAST_WIDTH + len(GAP)) - len(GAP)
    width = max(shutil.get_terminal_size().columns, least_width)
    rich_table = RichTable(box=None, show_header=False, pad_edge=False, padding=(0, len(GAP), 0, 0))
    for column in range(len(cells[0])):
        rich_table.add_column(no_wrap=column < fixed_columns, overflow="fold")
    for number, (row, level) in enumerate(zip_longest(cells, table.levels)):
        if table.one_line:
            row[-1].truncate(width - fixed_width, overflow="ellipsis")
        row[0].stylize(STYLES.get(level, ""))
        rich_table.add_row(*row, style="bold" if table.heading and not number else "")
    make_console(sys.stdout, width).print(rich_table)


class Screen:
    """The terminal's other screen, for use `on_terminal`. A context manager: at its end the old content comes back."""

    def __init__(self) -> None:
        from rich.live import Live

        console = make_console(sys.stdout)
        self._live = Live(
            console=console, screen=True, auto_refresh=False, redirect_stdout=False, redirect_stderr=False
        )
        self._drawn: object = None
        """The lines that were drawn last, and the size for which; None before the first."""

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._live.stop()

    def show(self, parts: Parts) -> None:
        """Draw the parts if they, or the terminal's size, have changed. Lines that do not fit are only counted."""
        from rich.console import Group
        from rich.text import Text

        screen_size = self._live.console.size
        lines = [line for part in parts for line in _split_lines(part)]
        if len(lines) > screen_size.height:
            lines[screen_size.height - 1 :] = [
                (f"… {len(lines) - screen_size.height + 1} more lines: sparkd status", "")
            ]
        if (lines, screen_size) != self._drawn:
            self._drawn = lines, screen_size
            texts = [Text(printable(line), no_wrap=True, overflow="ellipsis") for line, _ in lines]
            for text, (_, level) in zip(texts, lines, strict=True):
                text.stylize(STYLES.get(level, ""), 0, (text.plain.find(GAP) + 1) or None)
            self._live.update(Group(*texts), refresh=True)


def _split_lines(part: str | Table) -> Iterable[tuple[str, str]]:
    """The lines of a part, each with its level."""
    if isinstance(part, str):
        return [(part, "")]
    return zip_longest(str(part).splitlines(), part.levels, fillvalue="") if part.rows else ()


def prompt(question: str) -> str:
    """Read a line of stdin, so that a join code does not show in ps. Raises UsageError at the end of stdin."""
    print(question, end="", flush=True)
    try:
        if line := sys.stdin.readline(4096):  # a terminal's longest
            return line
    except UnicodeDecodeError:
        raise UsageError("the answer is no text of this terminal's encoding", "nothing was done") from None
    raise UsageError("no answer came", "nothing was done")


def announce_paste(what: str) -> None:
    """Print what a command waits for, where stdin is a terminal."""
    if sys.stdin.isatty():
        print(f"paste {what}, then press Ctrl-D", file=sys.stderr, flush=True)


def confirm_unless(yes: bool, question: str, hint: str, why: str = "there is no terminal to confirm on") -> bool:
    """Have a person confirm, unless `yes` is set. Raises UsageError where there is no terminal for that."""
    if not yes and not sys.stdin.isatty():
        raise UsageError(why, hint)
    return yes or confirm(question)


def confirm(question: str, answers: Sequence[str] = ("y", "yes")) -> bool:
    """Whether a person types one of the answers. Raises UsageError at the end of stdin."""
    return prompt(question).strip().lower() in answers
