"""Records that libraries write by the standard library's `logging`. They quote input from outside: bad input too.

The agent writes them as the event `library.logged`, a command as one line each on stderr. Queries and users of URLs are
removed, for they may be secrets, and tracebacks are left out.
"""

from __future__ import annotations

import logging
import re
import time
from typing import Protocol

from sparkd.lib.redact import Redactor
from sparkd.lib.text import printable, sanitize

MOST_LINES, WINDOW_SECONDS = 60, 60.0
"""Remote clients can make a server's library log one line per request."""
TEXT_LIMIT = 1_000
_QUERY = re.compile(r"\?[^\s\"'<>]+")
_USER = re.compile(r"://[^\s/@\"'<>]+@")


class LogMethod(Protocol):
    """`log` of a logger of structlog's. `level` is one of DEBUG, INFO, WARNING, ERROR."""

    def __call__(self, level: int, event: str, **fields: object) -> object: ...


def route(log: LogMethod, level: int) -> None:
    """Pass records to `log`, and no longer to that of an earlier call. Those below WARNING only if `level` is DEBUG."""
    root = logging.getLogger()
    for handler in [one for one in root.handlers if isinstance(one, EventHandler)]:
        root.removeHandler(handler)
    root.addHandler(EventHandler(log))
    root.setLevel(level if level == logging.DEBUG else max(level, logging.WARNING))
    logging.captureWarnings(True)


def clean_stderr() -> None:
    """Where `route` is never called, `logging` prints warnings and errors on stderr: as one clean line each."""
    if logging.lastResort is not None:
        logging.lastResort.setFormatter(OneLineFormatter())


class EventHandler(logging.Handler):
    def __init__(self, log: LogMethod) -> None:
        super().__init__()
        self._log = log
        self._window_began = -WINDOW_SECONDS
        self._count = 0

    def emit(self, record: logging.LogRecord) -> None:
        now, left_out = time.monotonic(), 0
        if now - self._window_began >= WINDOW_SECONDS:
            left_out = max(0, self._count - MOST_LINES)
            self._window_began, self._count = now, 0
        self._count += 1
        if self._count <= MOST_LINES:
            level = min(max(record.levelno // 10 * 10, logging.DEBUG), logging.ERROR)
            self._log(level, "library.logged", library=record.name, **_fields(record), left_out=left_out or None)


class OneLineFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        text = ": ".join((f"sparkd: {record.name}", *_fields(record).values()))
        return sanitize(Redactor()(printable(text)), TEXT_LIMIT)


def _fields(record: logging.LogRecord) -> dict[str, str]:
    try:
        fields = {"message": record.getMessage()}
        if record.exc_info and (raised := record.exc_info[1]) is not None:
            fields["error"] = f"{type(raised).__name__}: {raised}"
    except Exception as failed:  # a bug in the library's message must not end what the library does
        fields = {"message": f"cannot be shown ({record.module}:{record.lineno}: {type(failed).__name__})"}
    return {key: _USER.sub("://***@", _QUERY.sub("?***", text)) for key, text in fields.items()}
