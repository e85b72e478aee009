"""Flags as words of a command line, so that vLLM's parser reads back what the recipe says."""

from __future__ import annotations

import json
from collections.abc import Mapping

from sparkd.flags import JsonValue


def words(args: Mapping[str, JsonValue]) -> list[str]:
    """One list of words for all flags, in their order."""
    return [word for flag, value in args.items() for word in _flag(flag, value)]


def _flag(flag: str, value: JsonValue) -> list[str]:
    if value is None:
        return []
    if value is True:
        return [f"--{flag}"]
    if value is False:
        return [f"--no-{flag}"]
    if isinstance(value, list):
        return [f"--{flag}", *(_text(one) for one in value)]
    text = _text(value)
    # Behind a space, a word that starts with a dash would be read as the next flag.
    return [f"--{flag}={text}"] if text.startswith("-") else [f"--{flag}", text]


def _text(value: JsonValue) -> str:
    if isinstance(value, str):
        return value
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)
