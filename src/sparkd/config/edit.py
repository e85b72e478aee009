"""Keys of a settings file, set and taken back as text: a person's comments, keys and order stay as they are."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping, MutableMapping
from textwrap import wrap
from typing import Any, cast

import tomlkit
from msgspec import Struct

from sparkd.config.layers import Key
from sparkd.config.reference import describe, format_line
from sparkd.config.settings import Settings
from sparkd.lib.errors import ConfigError

WIDTH = 118


class SetKey(Struct, frozen=True):
    section: str
    key: str
    value: str | bool | list[str]
    before: str | bool | list[str] | None = None
    """None: there was no such key."""


def set_keys(text: str, values: Mapping[Key, str | bool | list[str]]) -> tuple[str, tuple[SetKey, ...]]:
    """The text with these values, and what that changes; a new key stands below its description, first in its section.

    Raises ConfigError where the text is no TOML, or is written so that a key can't be added: that is left to a person.
    """
    wanted, changed = _parse(text), list[SetKey]()
    for (section, key), value in reversed(list(values.items())):  # each is inserted above the one before
        table = wanted.get(section, {})
        before = table.get(key)
        if before == value:
            continue
        if before is None:
            text = _add(text, section, _block(section, key, value))
        else:
            text = _replace(text, section, key, value)
        wanted[section] = {**table, key: value}
        changed.append(SetKey(section, key, value, before))
    lines = "; ".join(f"[{one.section}] {format_line(one.key, one.value)}" for one in changed[::-1])
    try:
        fits = _parse(text) == wanted
    except ConfigError:
        fits = False
    if not fits:
        raise ConfigError("the settings file is written so that no key can be added", f"set it by hand: {lines}")
    return text, tuple(changed[::-1])


def take_back(text: str, keys: tuple[SetKey, ...]) -> str:
    """The text without the keys that still have the value that was set; a replaced value comes back.

    Raises ConfigError where the text is no TOML.
    """
    for one in keys:
        block = _block(one.section, one.key, one.value)
        if _parse(text).get(one.section, {}).get(one.key) != one.value:
            continue
        if one.before is None and text.count(block) == 1:
            text = text.replace(block, "")
        else:
            text = _replace(text, one.section, one.key, one.before)
        # Its section, where nothing is left of it.
        text = re.sub(re.escape(_header(one.section)) + r"(?=\s*\Z|\n(?:#[^\n]*\n)*\[)", "", text)
    return text


def _parse(text: str) -> dict[str, dict[str, Any]]:
    """The sections; all keys of the settings are in one."""
    try:
        return {name: one for name, one in tomllib.loads(text).items() if isinstance(one, dict)}
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise ConfigError(f"the settings file is no TOML: {error}", "sparkd config check") from None


def _header(section: str) -> str:
    return f"\n# {getattr(Settings(), section).__doc__}\n[{section}]\n"


def _block(section: str, key: str, value: object) -> str:
    about = describe(getattr(Settings(), section), key)
    lines = wrap(about, WIDTH, initial_indent="# ", subsequent_indent="# ")
    return "\n".join(["", *lines, format_line(key, value), ""])


def _add(text: str, section: str, block: str) -> str:
    header = re.compile(rf"^[ \t]*\[[ \t]*{section}[ \t]*\][ \t]*(?:#.*)?$\n?", re.MULTILINE)
    text = text if text.endswith("\n") or not text else f"{text}\n"
    if not (found := header.search(text)):
        return f"{text}{_header(section)}{block}"
    return text[: found.end()] + block + text[found.end() :]


def _replace(text: str, section: str, key: str, value: object) -> str:
    """None removes the key."""
    document = tomlkit.parse(text)
    table = cast("MutableMapping[str, object]", document[section])
    if value is None:
        del table[key]
    else:
        table[key] = value
    return document.as_string()
