"""Removal of known secrets, and of likely keys and tokens, from each line of the engine's log."""

import json
import re
from collections.abc import Iterable

_SECRET_WORDS = re.compile(
    r"(?i)((?:api[-_]?key|token|password|authorization)['\"]?\s*[=:]\s*['\"]?(?:bearer\s+)?)([^\s'\",}]{4,})"
    r"|\b(hf_[A-Za-z0-9]{16,}|(?:sk-|nvapi-)[A-Za-z0-9_-]{16,})"
)
_MARKS = ("key", "token", "password", "authorization", "hf_", "sk-", "nvapi-")
"""Each match of `_SECRET_WORDS` contains one. Most lines have none, and this test costs a tenth of the search."""
_NO_SECRET = re.compile(
    r"(?i)(?:\d[\d,.]*|none|null|true|false|\*+"
    r"|(?!.*(?:hf_|sk-|nvapi-))/(?:etc|home|opt|root|run|srv|var)/[\w./-]+)$"
)
"""Values that are no secrets: counts, words such as null, and the path of the file with the secret. A path with
the beginning of a token in it is none of these."""


class Redactor:
    """Replaces known secrets, also in the forms of repr() and JSON, and likely keys and tokens, by `***`.

    It is applied to each line of the engine's log. The forms of `base.lib.redaction` would cost a third more, its rules
    far more, and they take out some words that people need.
    """

    def __init__(self, values: Iterable[str] = ()) -> None:
        lines = {line.strip() for value in values for line in value.splitlines()}  # a key file is logged line by line
        # The letters of shorter secrets are in every line.
        forms = {form for line in lines if len(line) >= 4 for form in self.list_forms(line)}
        known = sorted(forms, key=len, reverse=True)
        self._known = re.compile("|".join(map(re.escape, known))) if known else None

    def list_forms(self, secret: str) -> Iterable[str]:
        """The secret plain, in Python's notation (in either kind of quotes) and in JSON."""
        in_single_quotes = repr(f"{secret}'\"")[1:-4]  # repr() takes single quotes where a text has both kinds
        in_json = (json.dumps(secret, ensure_ascii=ascii_only)[1:-1] for ascii_only in (True, False))
        return secret, repr(secret)[1:-1], in_single_quotes, *in_json

    def hide_known(self, text: str) -> str:
        return self._known.sub("***", text) if self._known else text

    def __call__(self, text: str) -> str:
        text = self.hide_known(text)
        lower = text.lower()
        # Other letters than ASCII may match when case is ignored: the Kelvin sign is a k.
        if text.isascii() and not any(mark in lower for mark in _MARKS):
            return text
        return _SECRET_WORDS.sub(_hide, text)


def _hide(match: re.Match[str]) -> str:
    if match[3]:
        return "***"
    return match[0] if _NO_SECRET.match(match[2]) else f"{match[1]}***"
