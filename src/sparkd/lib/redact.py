"""Secrets taken out of text."""

from __future__ import annotations

import json
import re

_SECRET_WORDS = re.compile(
    r"(?i)((?:api[-_]?key|token|password|authorization)['\"]?\s*[=:]\s*['\"]?(?:bearer\s+)?)([^\s'\",}]{4,})"
    r"|\b((?:hf_|sk-|nvapi-)[A-Za-z0-9_-]{16,})"
)
_MARKS = ("key", "token", "password", "authorization", "hf_", "sk-", "nvapi-")
"""One of them stands in whatever `_SECRET_WORDS` finds. Most lines have none, which costs a tenth of the search."""
_COUNTS = re.compile(r"(?i)(?:\d[\d,.]*|none|null|true|false|\*+)$")
SHORTEST_SECRET = 4
"""Shorter secrets are not looked for: their letters stand in every line."""


class Redactor:
    """Replaces known secrets, also as repr() or JSON writes them, and what looks like a key or a token, by `***`."""

    def __init__(self, values: tuple[str, ...] = ()) -> None:
        lines = {line.strip() for value in values for line in value.splitlines()}  # a key file shows line by line
        forms = {form for line in lines for form in _forms(line)}
        known = sorted((form for form in forms if len(form) >= SHORTEST_SECRET), key=len, reverse=True)
        self._known = re.compile("|".join(re.escape(form) for form in known)) if known else None

    def __call__(self, text: str) -> str:
        if self._known:
            text = self._known.sub("***", text)
        lower = text.lower()
        # Beyond ASCII, other letters match these without case: the Kelvin sign is a k.
        if text.isascii() and not any(mark in lower for mark in _MARKS):
            return text
        return _SECRET_WORDS.sub(_hide, text)


def _forms(secret: str) -> tuple[str, ...]:
    """As it stands in text, in Python's notation (in either kind of quotes) and in JSON."""
    in_single_quotes = repr(f"{secret}'\"")[1:-4]
    in_json = (json.dumps(secret, ensure_ascii=ascii_only)[1:-1] for ascii_only in (True, False))
    return secret, repr(secret)[1:-1], in_single_quotes, *in_json


def _hide(found: re.Match[str]) -> str:
    if found[3]:
        return "***"
    return found[0] if _COUNTS.match(found[2]) else f"{found[1]}***"
