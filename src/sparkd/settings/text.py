"""Settings as people read them: the commented default file, the manual page, `sparkd config show`."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from textwrap import wrap

import tomlkit
from pydantic.fields import FieldInfo
from tomlkit.items import Item

from sparkd.settings import kinds
from sparkd.settings.model import Settings
from sparkd.settings.sources import FILE_VARIABLE, PREFIX, Loaded

_HEAD = f"""\
# Configuration of sparkd. Every key stands here with its default: take the # away and change the value.
# Files in conf.d beside this one come after it, in the order of their names; after them come variables of the
# environment, {PREFIX}SECTION__KEY. `sparkd config show` says what holds and where it was set.
"""
_ORIGIN_COLUMN = 48


def default_file() -> str:
    """Text of config/sparkd.toml."""
    parts = [_HEAD]
    for name, section in _sections():
        parts.append(f"\n# {section.__doc__}\n[{name}]\n")
        for key, info in type(section).model_fields.items():
            parts.append("\n" + "".join(f"# {line}\n" for line in wrap(_description(info), 116)))
            parts.append(f"#{_line(key, getattr(section, key))}\n")
    return "".join(parts)


def manual() -> str:
    """Text of docs/sparkd.toml.5.md."""
    parts = [
        "# NAME\n\nsparkd.toml - configuration of sparkd, the node agent\n",
        "\n# SYNOPSIS\n\n`/etc/sparkd/sparkd.toml`, `/etc/sparkd/conf.d/*.toml`\n",
        "\n# DESCRIPTION\n\n" + _ABOUT,
    ]
    for name, section in _sections():
        parts.append(f"\n# [{name}]\n\n{section.__doc__}\n")
        for key, info in type(section).model_fields.items():
            default = _line(key, getattr(section, key)).replace(" = ", "` = `", 1)
            parts.append(f"\n`{name}.{default}`\n: {_description(info)}{_bounds(info)}\n")
    return "".join(parts) + _FILES


def show(loaded: Loaded) -> str:
    """What holds, as TOML, each line with what set it."""
    lines: list[str] = []
    for name, section in _sections(loaded.settings):
        lines += ["", f"[{name}]"]
        tables: list[str] = []
        for key in type(section).model_fields:
            value, dotted = getattr(section, key), f"{name}.{key}"
            if isinstance(value, Mapping) and value:
                tables += ["", f"[{dotted}]", *(_entry(loaded, dotted, entry, one) for entry, one in value.items())]
            else:
                lines.append(_set_by(_line(key, value), loaded.origins.get(dotted, "default")))
        lines += tables
    return "\n".join(lines[1:])


def show_json(loaded: Loaded) -> str:
    """What holds, as one object: section, key, then `value` and `origin`; a table has an origin for each entry."""
    document = {
        name: {
            key: {"value": value, "origin": _origins(loaded, f"{name}.{key}", value)}
            for key, value in section.model_dump(mode="json").items()
        }
        for name, section in _sections(loaded.settings)
    }
    return json.dumps(document, indent=2, ensure_ascii=False)


def _origins(loaded: Loaded, dotted: str, value: object) -> str | dict[str, str]:
    if isinstance(value, Mapping) and value:
        return {name: loaded.origins.get(f"{dotted}.{name}", "default") for name in value}
    return loaded.origins.get(dotted, "default")


def _entry(loaded: Loaded, table: str, name: str, value: object) -> str:
    origin = loaded.origins.get(f"{table}.{name}", "default")
    try:
        return _set_by(_line(name, value), origin)
    except ValueError:  # null, which only a variable can say
        return _set_by(f"# {name} is left out", origin)


def _line(key: str, value: object) -> str:
    """`key = value` as TOML, on one line. Raises ValueError where the value holds null."""
    return _item({key: value}).as_string()[1:-1]


def _item(raw: object) -> Item:
    """Tables inline. The library's own inline tables in inline tables have no space after a comma."""
    if isinstance(raw, Mapping):
        table = tomlkit.inline_table()
        table.update({name: _item(one) for name, one in raw.items()})
        return table
    if isinstance(raw, list | tuple):
        array = tomlkit.array()
        array.extend(_item(one) for one in raw)
        return array
    return tomlkit.item(raw)


def _set_by(text: str, origin: str) -> str:
    return f"{text:<{_ORIGIN_COLUMN}} # {origin}"


def _sections(settings: Settings | None = None) -> Iterator[tuple[str, kinds.Section]]:
    whole = settings or Settings()
    for name in type(whole).model_fields:
        yield name, getattr(whole, name)


def _description(info: FieldInfo) -> str:
    assert info.description, "every key is described"
    return info.description


def _bounds(info: FieldInfo) -> str:
    least = next((one.ge for one in info.metadata if hasattr(one, "ge")), None)
    most = next((one.le for one in info.metadata if hasattr(one, "le")), None)
    return f" From {least} to {most}." if least is not None and most is not None else ""


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
