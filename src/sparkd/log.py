"""sparkd's own events: `area.thing.happened` with fields, one line each, beside the engine's lines in the journal."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Protocol

from sparkd.printable import printable

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
    return _Lines(put, redact)


class _Lines:
    def __init__(self, put: Callable[[int, str], None], redact: Redactor) -> None:
        self._put = put
        self._redact = redact

    def info(self, event: str, **fields: object) -> None:
        self._tell(6, event, fields)

    def warning(self, event: str, **fields: object) -> None:
        self._tell(4, event, fields)

    def error(self, event: str, **fields: object) -> None:
        self._tell(3, event, fields)

    def _tell(self, priority: int, event: str, fields: dict[str, object]) -> None:
        # Redacted before it is rendered: quoting would hide a secret that holds a quote.
        shown = {key: self._flat(value) for key, value in fields.items() if value is not None and value != ""}
        line = " ".join((event, *(f"{key}={_quoted(value)}" for key, value in shown.items())))
        self._put(priority, self._redact(printable(line)))

    def _flat(self, value: object) -> str:
        """One line for each event, and nothing that a terminal acts on, whatever a field holds."""
        match value:
            case bool():
                return "true" if value else "false"
            case float():
                return str(round(value, 3))
            case int():
                return str(value)
            case _:
                return printable(" ".join(self._redact(str(value)).split()))


def _quoted(value: str) -> str:
    """As logfmt has it: in quotation marks where it would not be one word."""
    if any(mark in value for mark in ' ="'):
        value = value.replace("\\", "\\\\").replace('"', '\\"')
        value = f'"{value}"'
    return value.replace("\n", "\\n")
