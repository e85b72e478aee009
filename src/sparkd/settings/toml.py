"""Values as TOML, which Python itself only reads."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping

_BARE = re.compile(r"[A-Za-z0-9_-]+\Z")


def key(name: str) -> str:
    return name if _BARE.match(name) else string(name)


def string(text: str) -> str:
    """A basic string: JSON's, but for DEL, which TOML wants escaped."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007F")


def value(raw: object) -> str:
    """The value on one line. TOML has no null: inside a list or a table it cannot be said, so it is refused."""
    if isinstance(raw, bool):
        return "true" if raw else "false"
    if isinstance(raw, str):
        return string(raw)
    if isinstance(raw, float) and raw.is_integer() and abs(raw) < 1e15:
        return f"{raw:.0f}"
    if isinstance(raw, int | float):
        return repr(raw)
    if isinstance(raw, list | tuple):
        return f"[{', '.join(value(one) for one in raw)}]"
    if isinstance(raw, Mapping):
        entries = ", ".join(f"{key(str(name))} = {value(one)}" for name, one in raw.items())
        return f"{{ {entries} }}" if entries else "{}"
    raise ValueError(f"TOML has no {type(raw).__name__}")
