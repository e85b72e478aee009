"""The line of progress, as a terminal gets it."""

from __future__ import annotations

import io
from contextlib import redirect_stderr

import pytest

from sparkd.commands import progress
from sparkd.commands.progress import Progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_the_line_fits_the_terminal_and_moves_no_cursor_but_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "PAUSE_SECONDS", 0.0)
    monkeypatch.setenv("COLUMNS", "80")
    with redirect_stderr(Terminal()) as shown:
        one = Progress(46, 160 << 30)
        one.next("\x1b[2J" + "x" * 200)
        one.done(0)
        assert shown.getvalue() == "", "nothing to reckon the rest by"
        one.done(80 << 30)
    line = shown.getvalue().removeprefix("\r\x1b[K")
    assert line.isprintable()
    assert len(line) < 80
    assert ": 80.0 of 160.0 GiB, about " in line
