"""A line that is written anew while a person looks on."""

from __future__ import annotations

import shutil
import sys
import time

from sparkd.host.harmless import harmless

PAUSE_SECONDS = 0.5
"""Between two lines of progress."""
GIB = 1 << 30


class Progress:
    """Shown on a terminal alone."""

    def __init__(self, files: int, total_bytes: int) -> None:
        self._shown = sys.stderr.isatty()
        self._files, self._total_bytes = files, total_bytes
        self._number, self._name, self._bytes = 0, "", 0
        self._began = self._told = time.monotonic()

    def next(self, name: str) -> None:
        self._number, self._name = self._number + 1, name

    def done(self, size_bytes: int) -> None:
        """So many bytes more."""
        self._bytes += size_bytes
        now = time.monotonic()
        if not self._shown or not self._bytes or now - self._told < PAUSE_SECONDS:
            return
        self._told = now
        left = max(0.0, (now - self._began) * (self._total_bytes - self._bytes) / self._bytes)
        amount = f"{self._bytes / GIB:.1f} of {self._total_bytes / GIB:.1f} GiB"
        begin, rest = f"{self._number}/{self._files} ", f": {amount}, about {left:.0f} s left"
        # One line of the terminal's: what went on to a second would not be written over.
        room = max(8, shutil.get_terminal_size().columns - len(begin) - len(rest) - 1)
        print(f"\r\x1b[K{begin}{harmless(self._name, room)}{rest}", end="", file=sys.stderr, flush=True)

    def end(self) -> None:
        if self._shown:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)
