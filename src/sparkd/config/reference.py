"""Settings as people read them: the commented default file, the manual page, `sparkd config show`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from textwrap import wrap

import tomlkit
from pydantic import BaseModel

from sparkd.config.settings import Settings
from sparkd.config.sources import FILE_VARIABLE, PREFIX, Loaded

_HEAD = f"""\
# Configuration of sparkd. Every key stands here with its default: take the # away and change the value.
# Files in conf.d beside this one come after it, in the order of their names; after them come variables of the
# environment, {PREFIX}SECTION__KEY. `sparkd config show` says what holds and where it was set.
"""


def default_file() -> str:
    """Text of config/sparkd.toml."""
    parts = [_HEAD]
    for name, section in Settings():
        parts.append(f"\n# {section.__doc__}\n[{name}]\n")
        for key, value in section:
            lines = wrap(_description(section, key), 118, initial_indent="# ", subsequent_indent="# ")
            parts.append("\n".join(["", *lines, f"#{_line(key, value)}", ""]))
    return "".join(parts)


def manual() -> str:
    """Text of docs/sparkd.toml.5.md."""
    parts = [
        "# NAME\n\nsparkd.toml - configuration of sparkd, the node agent\n",
        "\n# SYNOPSIS\n\n`/etc/sparkd/sparkd.toml`, `/etc/sparkd/conf.d/*.toml`\n",
        "\n# DESCRIPTION\n\n" + _ABOUT,
    ]
    for name, section in Settings():
        parts.append(f"\n# [{name}]\n\n{section.__doc__}\n")
        for key, value in section:
            metadata = type(section).model_fields[key].metadata
            bounds = [getattr(one, bound) for one in metadata for bound in ("ge", "le") if hasattr(one, bound)]
            span = " From {} to {}.".format(*bounds) if bounds else ""
            default = _line(key, value).replace(" = ", "` = `", 1)
            parts.append(f"\n`{name}.{default}`\n: {_description(section, key)}{span}\n")
    return "".join(parts) + _FILES


def show(loaded: Loaded) -> str:
    """What holds, as TOML, each line with what set it."""
    lines: list[str] = []
    for name, section in loaded.settings:
        lines += ["", f"[{name}]"]
        tables: list[str] = []
        for key, value in section:
            origin = _origin(loaded, f"{name}.{key}", value)
            if isinstance(origin, str):
                lines.append(f"{_line(key, value):<48} # {origin}")
            else:
                tables += ["", f"[{name}.{key}]"]
                tables += [f"{_line(entry, value[entry]):<48} # {by}" for entry, by in origin.items()]
        lines += tables
    return "\n".join(lines[1:])


def show_json(loaded: Loaded) -> str:
    """What holds, as one object: section, key, then `value` and `origin`; a table has an origin for each entry."""
    document = {
        name: {
            key: {"value": value, "origin": _origin(loaded, f"{name}.{key}", value)}
            for key, value in section.model_dump(mode="json").items()
        }
        for name, section in loaded.settings
    }
    return json.dumps(document, indent=2, ensure_ascii=False)


def _origin(loaded: Loaded, dotted: str, value: object) -> str | dict[str, str]:
    if isinstance(value, Mapping) and value:
        return {name: loaded.origins.get(f"{dotted}.{name}", "default") for name in value}
    return loaded.origins.get(dotted, "default")


def _line(key: str, value: object) -> str:
    """`key = value` as TOML, on one line; a comment where that can't be said, for only a variable can say null."""
    table = tomlkit.inline_table()
    try:
        table[key] = value
    except ValueError:
        return f"# {key} is left out"
    return table.as_string()[1:-1]


def _description(section: BaseModel, key: str) -> str:
    return " ".join((type(section).model_fields[key].description or "").split())


_ABOUT = f"""\
The file is TOML. Every key has a default; an empty or a missing file is good. Files in `conf.d` beside it are read
after it, in the order of their names, and each key that they set replaces the earlier value; the tables
`engine.args`, `engine.env` and `engine.secrets` are merged entry by entry. Variables of the environment come last:
`{PREFIX}SECTION__KEY`, a list by commas or as JSON, a table as JSON, one entry of a table as
`{PREFIX}ENGINE__ENV__NAME`. `{FILE_VARIABLE}` names another file, which must exist; a `conf.d`
beside that one must belong to root, or to you, and be writable by nobody else.

A key or a variable that is not known is an error, and so is a value out of bounds: sparkd says all of them at once
and exits 78. `sparkd config check` says so without a start, for the recipe and its plan too; `sparkd config show`
prints what holds and what set it.
"""

_FILES = """
# SEE ALSO

`sparkd(8)`
"""
