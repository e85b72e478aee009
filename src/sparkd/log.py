"""sparkd's own events: `area.thing.happened` with fields, one line each, beside the engine's lines in the journal."""

from __future__ import annotations

import re
from collections.abc import Callable, MutableMapping
from functools import lru_cache
from typing import Any, Protocol

from sparkd.printable import printable

PRIORITIES = {"debug": 7, "info": 6, "warning": 4, "error": 3}

_SECRET_WORDS = re.compile(
    r"(?i)((?:api[-_]?key|token|password|authorization)['\"]?\s*[=:]\s*['\"]?(?:bearer\s+)?)([^\s'\",}]{4,})"
    r"|\b((?:hf_|sk-|nvapi-)[A-Za-z0-9_-]{16,})"
)
_COUNTS = re.compile(r"(?i)(?:\d[\d,.]*|none|null|true|false|\*+)$")
SHORTEST_SECRET = 4
"""Shorter secrets are not looked for: their letters stand in every line."""


class Events(Protocol):
    """How a module reports: one call per decision, on change."""

    def info(self, event: str, **fields: object) -> None: ...
    def warning(self, event: str, **fields: object) -> None: ...
    def error(self, event: str, **fields: object) -> None: ...


class Redactor:
    """Takes secrets out of a line: the values it was told, and whatever looks like a key or token."""

    def __init__(self, values: tuple[str, ...] = ()) -> None:
        lines = {line.strip() for value in values for line in value.splitlines()}  # a key file shows line by line
        known = sorted((v for v in lines if len(v) >= SHORTEST_SECRET), key=len, reverse=True)
        self._known = re.compile("|".join(re.escape(v) for v in known)) if known else None

    def __call__(self, text: str) -> str:
        if self._known:
            text = self._known.sub("***", text)
        return _SECRET_WORDS.sub(_hide, text)


def _hide(found: re.Match[str]) -> str:
    if found[3]:
        return "***"
    return found[0] if _COUNTS.match(found[2]) else f"{found[1]}***"


def events(put: Callable[[int, str], None], redact: Redactor) -> Events:
    """Events rendered as `area.thing.happened key=value ...` and handed to `put(priority, line)`."""
    import structlog

    render = structlog.processors.LogfmtRenderer(key_order=["event"], bool_as_flag=False)

    def line(_logger: object, method: str, fields: MutableMapping[str, Any]) -> str:
        # Redacted before it is rendered: quoting would hide a secret that holds a quote.
        shown = {key: _flat(value, redact) for key, value in fields.items() if value is not None and value != ""}
        put(PRIORITIES[method], redact(printable(str(render(None, method, shown)).removeprefix("event="))))
        raise structlog.DropEvent

    logger: Events = structlog.wrap_logger(None, processors=[line], wrapper_class=_bound_logger())
    return logger


@lru_cache
def _bound_logger() -> type[Any]:
    import structlog

    return structlog.make_filtering_bound_logger("info")


def _flat(value: object, redact: Redactor) -> object:
    """One line for each event, and nothing that a terminal acts on, whatever a field holds."""
    if isinstance(value, float):
        return round(value, 3)
    if isinstance(value, str):
        return printable(" ".join(redact(value).split()))
    return value
