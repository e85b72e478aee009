"""What libraries log by the standard library's `logging`: bad input, for it quotes whatever was met outside.

The agent gets it as the event `library.logged`, a command as a line on stderr. Whole addresses are never shown: their
queries and users may be secrets.
"""

from __future__ import annotations

import logging
import re
import time
from typing import Protocol

from sparkd.lib.redact import Redactor
from sparkd.lib.text import printable, sanitize

MOST_LINES, WINDOW_SECONDS = 60, 60.0
"""Clients from outside can make a server's library log for each request of theirs."""
TEXT_LIMIT = 1_000
_QUERY = re.compile(r"\?[^\s\"'<>]+")
_USER = re.compile(r"://[^\s/@\"'<>]+@")


class Tell(Protocol):
    """As the method `log` of a logger of structlog's: `level` is one of `logging`'s, DEBUG to ERROR."""

    def __call__(self, level: int, event: str, **fields: object) -> object: ...


def route(tell: Tell, level: int) -> None:
    """Records become events of `tell`, instead of what `route` or `print_plainly` did before.

    Libraries say nothing below a warning but where `level` is DEBUG.
    """
    _install(_ToEvents(tell), level if level == logging.DEBUG else max(level, logging.WARNING))


def print_plainly() -> None:
    """Warnings and errors, one line each on stderr, until `route` is called."""
    handler = logging.StreamHandler()
    handler.setFormatter(_Plain())
    _install(handler, logging.WARNING)


def _install(handler: logging.Handler, level: int) -> None:
    root = logging.getLogger()
    for one in [one for one in root.handlers if one.name == __name__]:
        root.removeHandler(one)
    handler.name = __name__
    root.addHandler(handler)
    root.setLevel(level)
    logging.captureWarnings(True)


class _ToEvents(logging.Handler):
    def __init__(self, tell: Tell) -> None:
        super().__init__()
        self._tell = tell
        self._since = -WINDOW_SECONDS
        self._count = 0

    def emit(self, record: logging.LogRecord) -> None:
        now, left_out = time.monotonic(), 0
        if now - self._since >= WINDOW_SECONDS:
            left_out = max(0, self._count - MOST_LINES)
            self._since, self._count = now, 0
        self._count += 1
        if self._count > MOST_LINES:
            return
        level = min(max(record.levelno // 10 * 10, logging.DEBUG), logging.ERROR)
        self._tell(level, "library.logged", library=record.name, **_fields(record), left_out=left_out or None)


class _Plain(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        text = Redactor()(printable(": ".join((f"sparkd: {record.name}", *_fields(record).values()))))
        return sanitize(text, TEXT_LIMIT)


def _fields(record: logging.LogRecord) -> dict[str, str]:
    """Text, and the error that it was logged with: without its traceback, which quotes what nobody has looked at."""
    try:
        fields = {"message": record.getMessage()}
        if record.exc_info and (raised := record.exc_info[1]) is not None:
            fields["error"] = f"{type(raised).__name__}: {raised}"
    except Exception as failed:  # the library must not fail by a bug in what it logs
        fields = {"message": f"cannot be shown ({record.module}:{record.lineno}: {type(failed).__name__})"}
    return {key: _USER.sub("://***@", _QUERY.sub("?***", text)) for key, text in fields.items()}
