"""sparkd's own events: `area.thing.happened` with fields, one line each, beside the engine's lines in the journal.

Every event passes the same processors: secrets out, then printable and bounded, then logfmt or JSON. What the libraries
log becomes the event `library.logged`. The engine's lines do not come here.
"""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Callable, Mapping
from functools import partial
from typing import Literal, Protocol

from sparkd.lib.imports import without
from sparkd.lib.library_log import route
from sparkd.lib.redact import Redactor
from sparkd.lib.text import printable, sanitize

with without("rich"):
    import structlog
    from structlog.processors import JSONRenderer, LogfmtRenderer, TimeStamper, add_log_level
    from structlog.typing import EventDict, FilteringBoundLogger, Processor, WrappedLogger

Level = Literal["debug", "info", "warning", "error"]

VALUE_LIMIT = 4_000
LINE_LIMIT = 10_000
"""Characters. At four bytes each they stay below the 48 KiB at which journald cuts a line (LineMax=)."""
NAME_LIMIT = 64
MARKS = 8
"""Room for the quotes and separators of a field."""
RESERVED = frozenset(("event", "level", "timestamp", "logger", "node", "rank", "epoch"))
"""Keys that a JSON line uses itself; an event's own field of such a name becomes `field_NAME` there."""
_NO_KEY = re.compile(r"[^A-Za-z0-9_.-]")


class Events(Protocol):
    """How a module reports: one call per decision, on change."""

    def info(self, event: str, **fields: object) -> None: ...
    def warning(self, event: str, **fields: object) -> None: ...
    def error(self, event: str, **fields: object) -> None: ...


class Put(Protocol):
    """As `Journal.put`."""

    def __call__(self, priority: int, text: str, *, keep: bool) -> None: ...


class ProcessLog:
    """Format, level and common fields of this process's lines.

    The common fields are not contextvars: several threads log, and a thread starts with an empty context.
    """

    def __init__(self, put: Put) -> None:
        self._put = put
        self._fields: Mapping[str, object] = {}
        self._as_json = False
        self._level: Level = "info"

    def configure(self, *, as_json: bool, level: Level) -> None:
        self._as_json, self._level = as_json, level

    def bind(self, **fields: object) -> None:
        """Fields of every JSON line from now on. A logfmt line does without: journald knows host and unit."""
        self._fields = {**self._fields, **fields}

    def events(self, redact: Redactor) -> Events:
        """sparkd's own events. The libraries' records become events too, which a full queue may drop."""
        libraries = self._logger(partial(self._put, keep=False), redact)
        route(libraries.log, logging.getLevelNamesMapping()[self._level.upper()])
        return self._logger(partial(self._put, keep=True), redact)

    def _logger(self, put: Callable[[int, str], None], redact: Redactor) -> FilteringBoundLogger:
        return _logger(put, redact, self._as_json, self._level, lambda: self._fields)


def events(
    put: Callable[[int, str], None], redact: Redactor, *, as_json: bool = False, level: Level = "info"
) -> Events:
    """Events rendered as `area.thing.happened key=value ...`, or as JSON, and handed to `put(priority, line)`."""
    return _logger(put, redact, as_json, level, dict)


def _logger(
    put: Callable[[int, str], None],
    redact: Redactor,
    as_json: bool,
    level: Level,
    common: Callable[[], Mapping[str, object]],
) -> FilteringBoundLogger:
    clean = _sanitizer(redact)
    processors = (
        (_common_fields(common), clean, add_log_level, TimeStamper("iso"), _JSON) if as_json else (clean, _logfmt)
    )
    logger: FilteringBoundLogger = structlog.wrap_logger(
        _Lines(put),
        processors=processors,
        wrapper_class=structlog.make_filtering_bound_logger(level),
        context_class=dict,
    ).bind()  # bound: wrap_logger's proxy makes a logger for each call
    return logger


class _Lines:
    """What structlog hands a rendered line to, by the name of its level. Priorities of sd-daemon(3)."""

    def __init__(self, put: Callable[[int, str], None]) -> None:
        self.debug = partial(put, 7)
        self.info = partial(put, 6)
        self.warning = partial(put, 4)
        self.error = partial(put, 3)


def _common_fields(common: Callable[[], Mapping[str, object]]) -> Processor:
    def add(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
        name = event.pop("event")
        own = {f"field_{key}" if key in RESERVED else key: value for key, value in event.items()}
        return {"event": name, **common(), **own}

    return add


def _sanitizer(redact: Redactor) -> Processor:
    """Fields without secrets, each a number or one line of text, as many as one line has room for."""

    def clean(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
        cleaned: EventDict = {"event": sanitize(redact(printable(str(event.pop("event")))), VALUE_LIMIT)}
        room = LINE_LIMIT
        for key, value in event.items():
            if value is None or value == "":
                continue
            if room <= 0:
                return {**cleaned, "cut": "…"}
            name, shown = _field(str(key), value, redact, min(VALUE_LIMIT, room))
            room -= len(name) + len(str(shown)) + MARKS
            cleaned[name] = shown
        return cleaned

    return clean


def _field(key: str, value: object, redact: Redactor, limit: int) -> tuple[str, object]:
    match value:
        case bool():
            shown: object = value
        case int():
            shown = value if -(1 << 63) <= value < 1 << 64 else hex(value)  # str() refuses thousands of digits
        case float() if math.isfinite(value):
            shown = round(value, 3)
        case _:
            shown = str(value)
    name, text = _text(key, str(shown), redact, limit)
    return _key(name), shown if text == str(shown) else text


def _text(key: str, raw: str, redact: Redactor, limit: int) -> tuple[str, str]:
    """Redacts before quoting, which would hide a secret that holds a quote; and with the key, which may show that the
    value is a secret.
    """
    key, _, hidden = redact(f"{key}={raw}").partition("=")
    line = printable(" ".join(hidden.split()))
    if line != raw:  # colours or line ends may have divided a secret
        _, _, line = redact(f"{key}={line}").partition("=")
    return key, sanitize(line, limit)


def _key(raw: str) -> str:
    return _NO_KEY.sub("_", raw[:NAME_LIMIT]) or "_"


def _logfmt(logger: WrappedLogger, method: str, event: EventDict) -> str:
    name = event.pop("event")
    fields = _FIELDS(logger, method, event)
    return f"{name} {fields}" if fields else str(name)


_FIELDS = LogfmtRenderer(bool_as_flag=False)
_JSON = JSONRenderer(ensure_ascii=False)
