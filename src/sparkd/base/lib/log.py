"""sparkd's own events: `area.thing.happened` with fields, one line each, beside the engine's lines in the journal.

Every event passes the same processors: secrets removed, then printable and bounded, then logfmt or JSON.

Records that libraries write by the standard library's `logging` become the event `library.message.logged` in the
agent, and one line each on stderr in a command, without tracebacks. structlog is imported by `events`, since a command
without events does not need it.
"""

from __future__ import annotations

import logging
import math
import re
import sys
import threading
import time
from collections.abc import Callable, Mapping
from functools import partial
from traceback import format_exception
from types import SimpleNamespace
from typing import TYPE_CHECKING, Literal, Protocol

from sparkd.base.lib import without
from sparkd.base.lib.text import printable, sanitize

if TYPE_CHECKING:
    from structlog.typing import EventDict, FilteringBoundLogger, WrappedLogger

    from sparkd.base.lib.redaction import Redaction

Level = Literal["debug", "info", "warning", "error"]

VALUE_LIMIT, LINE_LIMIT, NAME_LIMIT = 4_000, 10_000, 64
"""Characters: at four bytes each below the 48 KiB at which journald cuts a line (LineMax=)."""
PRIORITIES = {"debug": 7, "info": 6, "warning": 4, "error": 3}
"""Priorities of sd-daemon(3)."""
RESERVED = frozenset(("event", "level", "timestamp", "logger", "node", "rank", "epoch"))
"""Keys of a JSON line; an event's field with such a name becomes `field_NAME` there."""
_NO_KEY = re.compile(r"[^A-Za-z0-9_.-]")
MOST_LINES, WINDOW_SECONDS = 60, 60.0
"""The most lines of libraries in a window: remote clients can cause one of a server's library per request."""


class Events(Protocol):
    """One call per decision, on change."""

    def info(self, event: str, **fields: object) -> None: ...
    def warning(self, event: str, **fields: object) -> None: ...
    def error(self, event: str, **fields: object) -> None: ...


class ProcessLog:
    """Format, level and common fields of this process's lines, which go to `put`, a `Journal.put`.

    The common fields are not contextvars: a thread starts with an empty context.
    """

    def __init__(self, put: Callable[..., None]) -> None:
        self._put = put
        self._fields: Mapping[str, object] = {}
        self._as_json = False
        self._level: Level = "info"

    def configure(self, *, as_json: bool, level: Level) -> None:
        self._as_json, self._level = as_json, level

    def bind(self, **fields: object) -> None:
        """Add fields to every JSON line. A logfmt line has none: journald knows host and unit."""
        self._fields = {**self._fields, **fields}

    def events(self, redact: Redaction) -> Events:
        """sparkd's own events. Libraries' records become events too, which a full queue may drop."""
        make = partial(events, redact=redact, as_json=self._as_json, level=self._level, common=lambda: self._fields)
        route(make(partial(self._put, keep=False)).log, logging.getLevelNamesMapping()[self._level.upper()])
        return make(partial(self._put, keep=True))


def events(
    put: Callable[[int, str], None],
    redact: Redaction,
    *,
    as_json: bool = False,
    level: Level = "info",
    common: Callable[[], Mapping[str, object]] = dict,
) -> FilteringBoundLogger:
    """A logger that passes `area.thing.happened key=value ...`, or JSON, to `put(priority, line)`."""
    with without("rich"):
        import structlog
        from structlog.processors import JSONRenderer, LogfmtRenderer, TimeStamper, add_log_level

    render_fields = LogfmtRenderer(bool_as_flag=False)

    def clean(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
        """Fields without secrets, each a number or one line of text, up to the line's limit."""
        cleaned: EventDict = {"event": sanitize(redact(printable(str(event.pop("event")))), VALUE_LIMIT)}
        room = LINE_LIMIT
        for key, value in event.items():
            if value is None or value == "":
                continue
            if room <= 0:
                return {**cleaned, "cut": "…"}
            name, shown = _clean_field(str(key), value, redact, min(VALUE_LIMIT, room))
            room -= len(name) + len(str(shown)) + 8  # for the marks around them
            cleaned[name] = shown
        return cleaned

    def add_common(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
        own = {f"field_{key}" if key in RESERVED else key: value for key, value in event.items() if key != "event"}
        return {"event": event["event"], **common(), **own}

    def render_logfmt(logger: WrappedLogger, method: str, event: EventDict) -> str:
        name = event.pop("event")
        fields = render_fields(logger, method, event)
        return f"{name} {fields}" if fields else str(name)

    json_steps = (add_common, clean, add_log_level, TimeStamper("iso"), JSONRenderer(ensure_ascii=False))
    logger: FilteringBoundLogger = structlog.wrap_logger(
        SimpleNamespace(**{name: partial(put, priority) for name, priority in PRIORITIES.items()}),
        processors=json_steps if as_json else (clean, render_logfmt),
        wrapper_class=structlog.make_filtering_bound_logger(level),
        context_class=dict,
    ).bind()  # bound: wrap_logger's proxy makes a logger for each call
    return logger


def _clean_field(key: str, value: object, redact: Redaction, limit: int) -> tuple[str, object]:
    """Key and value of a field without secrets: a number, or one line of at most `limit` characters."""
    match value:
        case int():  # str() refuses thousands of digits
            value = value if -(1 << 63) <= value < 1 << 64 else hex(value)
        case float() if math.isfinite(value):
            value = round(value, 3)
        case _:
            value = str(value)
    raw = str(value)
    # Before quoting, which would hide a secret that contains a quote; with the key, which may mark it as a secret.
    key, _, text = redact(f"{key}={raw}").partition("=")
    text = printable(" ".join(text.split()))
    if text != raw:  # colours or line ends may have split a secret
        _, _, text = redact(f"{key}={text}").partition("=")
    text = sanitize(text, limit)
    return _NO_KEY.sub("_", key[:NAME_LIMIT]) or "_", value if text == raw else text


def route(log: Callable[..., object], level: int) -> None:
    """Pass libraries' records to `log(level, event, **fields)`, in place of an earlier call's.

    Those below WARNING pass only if `level` is DEBUG.
    """
    root = logging.getLogger()
    for handler in tuple(root.handlers):
        if isinstance(handler, _EventHandler):
            root.removeHandler(handler)
    root.addHandler(_EventHandler(log))
    root.setLevel(level if level == logging.DEBUG else max(level, logging.WARNING))
    logging.captureWarnings(True)


def clean_stderr() -> None:
    """Print tracebacks without secrets, and libraries' warnings and errors as one clean line; `route` replaces that."""
    sys.excepthook = lambda _kind, error, _trace: print_bug(error)
    if threading.excepthook is threading.__excepthook__:  # a test has one of its own
        threading.excepthook = lambda failed: print_bug(failed.exc_value)
    if logging.lastResort is not None:
        logging.lastResort.setFormatter(_OneLineFormatter())


def print_bug(error: BaseException | None, redact: Redaction | None = None) -> None:
    """Print a traceback, as an excepthook does. `redact`: one that has the known secrets."""
    from sparkd.base.lib.redaction import Redaction

    lines = "".join(format_exception(error)).splitlines()
    print((redact or Redaction())("\n".join(map(printable, lines))), file=sys.stderr)


class _EventHandler(logging.Handler):
    def __init__(self, log: Callable[..., object]) -> None:
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
            self._log(
                level, "library.message.logged", library=record.name, **_read_fields(record), left_out=left_out or None
            )


class _OneLineFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        text = ": ".join((f"sparkd: {record.name}", *_read_fields(record).values()))
        from sparkd.base.lib.redaction import Redaction  # 20 ms, which a command without such lines does not take

        return sanitize(Redaction()(printable(text)), 1_000)


def _read_fields(record: logging.LogRecord) -> dict[str, str]:
    """The record's message, and its error if it has one."""
    try:
        fields = {"message": record.getMessage()}
        if record.exc_info and (raised := record.exc_info[1]) is not None:
            fields["error"] = f"{type(raised).__name__}: {raised}"
    except Exception as failed:  # a bug in the library's message must not interrupt it
        fields = {"message": f"cannot be shown ({record.module}:{record.lineno}: {type(failed).__name__})"}
    return fields
