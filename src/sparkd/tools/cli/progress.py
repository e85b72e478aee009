"""Progress of long work on stderr: a bar by rich on a terminal, elsewhere a line now and then.

Nothing is read as rich's markup, and a control character is written out.
"""

import sys
import threading
import time
from typing import Self

from sparkd.base.lib import start_thread
from sparkd.base.lib.text import printable, sanitize, size
from sparkd.tools.cli.console import make_console

TICK_SECONDS = 30.0
"""Time between two lines."""
BAR_WIDTH, FIGURES_WIDTH = 14, 40
"""Columns of the bar, and of its figures with the space between."""
LEAST_TEXT_WIDTH = 8
"""Columns of a file's number and name, however narrow the terminal is."""


class Ticker:
    """A context manager that prints a line now and then where stderr is no terminal, as in a log or through ssh."""

    def __init__(self, text: str, every_seconds: float = TICK_SECONDS) -> None:
        """`text`: what is done now."""
        self._text, self._every_seconds = text, every_seconds
        self._began, self._ended = time.monotonic(), threading.Event()
        self._thread = threading.Thread(target=self._tick, name="ticker", daemon=True)

    def __enter__(self) -> Self:
        if not sys.stderr.isatty():
            start_thread(self._thread)
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def show(self, text: str) -> None:
        """Show what is done now. Any thread may call it."""
        self._text = text

    def close(self) -> None:
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join(1)  # a line that is being written comes before what the caller prints

    def line(self) -> str:
        """The line of this moment: what is done, and for how long."""
        return f"{self._text}: for {time.monotonic() - self._began:.0f} s"

    def _tick(self) -> None:
        while not self._ended.wait(self._every_seconds):
            print(printable(self.line()), file=sys.stderr, flush=True)


class Progress(Ticker):
    """A bar on stderr, or a ticker's lines where that is no terminal, for the bytes of some files.

    It is a context manager, since the bar hides the cursor. Any thread may call `start_file` and `add_bytes`.
    """

    def __init__(self, files: int, total_bytes: int | None, every_seconds: float = TICK_SECONDS) -> None:
        """`files`: how many there are. `total_bytes`: of all of them; None where that is not known."""
        super().__init__("", every_seconds)
        self._files, self._number = files, 0
        self._total_bytes, self._done_bytes = total_bytes, 0
        self._bar = None
        if not sys.stderr.isatty():
            return
        from rich import progress
        from rich.table import Column

        one_line = Column(no_wrap=True)
        self._bar = progress.Progress(
            progress.TextColumn("{task.description}", markup=False),
            progress.BarColumn(BAR_WIDTH),
            progress.DownloadColumn(binary_units=True, table_column=one_line),
            progress.TransferSpeedColumn(table_column=one_line),
            progress.TimeRemainingColumn(table_column=one_line),
            console=make_console(sys.stderr),
            transient=True,
        )
        self._task = self._bar.add_task("", total=total_bytes)

    def line(self) -> str:
        done = f"{super().line()}, {size(self._done_bytes)}"
        if self._total_bytes is None:
            return done
        share = min(1.0, self._done_bytes / self._total_bytes) if self._total_bytes else 1.0
        return f"{done} of {size(self._total_bytes)}, {share:.0%}"

    def __enter__(self) -> Self:
        if self._bar:
            self._bar.start()
        return super().__enter__()

    def close(self) -> None:
        super().close()
        if self._bar:
            self._bar.stop()

    def start_file(self, name: str) -> None:
        """Show the name and number of the next file."""
        self._number += 1
        text = f"{self._number}/{self._files} {name}"
        self.show(sanitize(text))
        if self._bar:
            text_width = max(LEAST_TEXT_WIDTH, self._bar.console.width - BAR_WIDTH - FIGURES_WIDTH)
            self._bar.update(self._task, description=sanitize(text, text_width))

    def add_bytes(self, size_bytes: int) -> None:
        """Count so many more bytes as done; a number below zero takes some back."""
        self._done_bytes += size_bytes
        if self._bar:
            self._bar.update(self._task, advance=size_bytes)
