"""Settings as people read them: the commented default file, `sparkd config show`."""

import json
import re
from collections.abc import Mapping
from functools import cache
from inspect import getsource
from textwrap import wrap

import tomlkit
from pydantic import BaseModel

from sparkd.base.config.settings import Settings
from sparkd.base.config.sources import PREFIX, LoadedSettings

_HEAD = f"""\
# Configuration of sparkd. Every key stands here with its default: take the # away and change the value.
# Files in conf.d beside this one come after it, in the order of their names, but 10-init.toml, which `sparkd init`
# writes, comes before it; last come variables of the environment, {PREFIX}SECTION__KEY. `sparkd config show` says what
# holds and where it was set.
"""


def default_file() -> str:
    """Text of config/sparkd.toml."""
    parts = [_HEAD]
    for name, section in Settings():
        parts.append(f"\n# {section.__doc__}\n[{name}]\n")
        for key, value in section:
            lines = wrap(describe(section, key), 118, initial_indent="# ", subsequent_indent="# ")
            parts.append("\n".join(["", *lines, f"#{format_line(key, value)}", ""]))
    return "".join(parts)


def show(loaded: LoadedSettings) -> str:
    """The settings in force, as TOML, each line with what set it."""
    lines: list[str] = []
    for name, section in loaded.settings:
        lines += ["", f"[{name}]"]
        tables: list[str] = []
        for key, setting in section:
            value = dict(setting) if isinstance(setting, BaseModel) else setting
            origin = _find_origin(loaded, f"{name}.{key}", value)
            if isinstance(origin, str):
                lines.append(f"{format_line(key, value):<48} # {origin}")
            else:
                tables += ["", f"[{name}.{key}]"]
                tables += [f"{format_line(entry, value[entry]):<48} # {by}" for entry, by in origin.items()]
        lines += tables
    return "\n".join(lines[1:])


def show_json(loaded: LoadedSettings) -> str:
    """The settings in force as JSON: `value` and `origin` by section and key; a table has an origin for each entry."""
    document: dict[str, object] = {"schema": 1} | {
        name: {
            key: {"value": value, "origin": _find_origin(loaded, f"{name}.{key}", value)}
            for key, value in section.model_dump(mode="json").items()
        }
        for name, section in loaded.settings
    }
    return json.dumps(document, indent=2)


def _find_origin(loaded: LoadedSettings, dotted: str, value: object) -> str | dict[str, str]:
    """The origin of a key; of a table that has entries, the origin of each."""
    if isinstance(value, Mapping) and value:
        return {name: loaded.origins.get(f"{dotted}.{name}", "default") for name in value}
    return loaded.origins.get(dotted, "default")


def format_line(key: str, value: object) -> str:
    """`key = value` as TOML, on one line; a comment for null, which only a variable can set: TOML has none."""
    table = tomlkit.inline_table()
    try:
        table[key] = dict(value) if isinstance(value, BaseModel) else value
    except ValueError:
        return f"# {key} is left out"
    return table.as_string()[1:-1]


_read_source = cache(getsource)


def describe(section: BaseModel, key: str) -> str:
    """The text below a key. It is read from the source when needed: collecting all took 15 ms of each command."""
    match = re.search(rf'\n    {key}: .*?\n    """(.*?)"""', _read_source(type(section)), re.DOTALL)
    return " ".join(match[1].split()) if match else ""
