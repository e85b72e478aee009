"""Engine lines on their way to the journal: priority, secrets, folded progress bars, no echo of sparkd's own polls."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

from sparkd.engine.lines import WHOSE

PROGRESS_SECONDS = 1.0

_LEVEL = re.compile(rf"^{WHOSE}*(DEBUG|INFO|WARNING|ERROR|CRITICAL)\b")
_PRIORITY = {"DEBUG": 7, "INFO": 6, "WARNING": 4, "ERROR": 3, "CRITICAL": 3}
_PROGRESS = re.compile(r"\d+%(?: Completed)? ?\|.*\[\d\d:\d\d")
_LAST = re.compile(r"\b100%")


class Forwarder:
    """Turns raw lines into (priority, text) for the journal. For one thread."""

    def __init__(self, redact: Callable[[str], str], own_address: str) -> None:
        """`own_address` is the one that sparkd asks the engine on, and from."""
        self._redact = redact
        self._own_poll = re.compile(
            rf'^INFO: +{re.escape(own_address)}:\d+ - "GET /(?:health|metrics|v1/models) HTTP/1\.1" 200 OK$'
        )
        self._held: str | None = None
        self._progress_at = float("-inf")

    def lines(self, line: str, now: float) -> Iterator[tuple[int, str]]:
        """What to write for one more line, `now` being monotonic seconds."""
        if self._own_poll.match(line):
            return
        if "%" in line and _PROGRESS.search(line):
            if now - self._progress_at < PROGRESS_SECONDS and not _LAST.search(line):
                self._held = line
                return
            self._held = None
            self._progress_at = now
        elif self._held is not None:
            # Where a bar stood when something else was said, or when it stopped, is worth a line.
            yield 6, self._text(self._held)
            self._held = None
        yield _priority(line), self._text(line)

    def flush(self) -> Iterator[tuple[int, str]]:
        if self._held is not None:
            yield 6, self._text(self._held)
            self._held = None

    def _text(self, line: str) -> str:
        return f"engine| {self._redact(line)}"


def _priority(line: str) -> int:
    found = _LEVEL.match(line)
    return _PRIORITY[found[1]] if found else 6
