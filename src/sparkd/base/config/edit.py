"""Keys that `sparkd init` of earlier versions set in a person's settings file, taken back; the rest stays as it is."""

from __future__ import annotations

import re
import tomllib
from collections.abc import MutableMapping
from textwrap import wrap
from typing import Any, cast

import tomlkit
from msgspec import Struct

from sparkd.base.config.reference import describe, format_line
from sparkd.base.config.settings import Settings
from sparkd.base.lib.errors import ConfigError

WIDTH = 118


class SetKey(Struct, frozen=True):
    section: str
    key: str
    value: str | bool | list[str]
    before: str | bool | list[str] | None = None
    """None: there was no such key."""

    def stands_in(self, text: str) -> bool:
        """Whether it still has the value that was set. Raises ConfigError where the text is no TOML."""
        try:
            sections: dict[str, Any] = tomllib.loads(text)
        except (tomllib.TOMLDecodeError, RecursionError) as error:
            raise ConfigError(f"the settings file is no TOML: {error}", "sparkd config check") from None
        section = sections.get(self.section)
        return isinstance(section, dict) and section.get(self.key) == self.value


def take_back(text: str, keys: tuple[SetKey, ...]) -> str:
    """The text without the keys that still have the value that was set; a replaced value comes back.

    Raises ConfigError where the text is no TOML.
    """
    for key in keys:
        if not key.stands_in(text):
            continue
        block = _block(key)
        is_as_written = key.before is None and text.count(block) == 1
        text = text.replace(block, "") if is_as_written else _replace(text, key)
        # Its section, where nothing is left of it.
        text = re.sub(re.escape(_header(key.section)) + r"(?=\s*\Z|\n(?:#[^\n]*\n)*\[)", "", text)
    return text


def _header(section: str) -> str:
    return f"\n# {getattr(Settings(), section).__doc__}\n[{section}]\n"


def _block(key: SetKey) -> str:
    about = describe(getattr(Settings(), key.section), key.key)
    lines = wrap(about, WIDTH, initial_indent="# ", subsequent_indent="# ")
    return "\n".join(["", *lines, format_line(key.key, key.value), ""])


def _replace(text: str, key: SetKey) -> str:
    document = tomlkit.parse(text)
    table = cast("MutableMapping[str, object]", document[key.section])
    if key.before is None:
        del table[key.key]
    else:
        table[key.key] = key.before
    return document.as_string()
