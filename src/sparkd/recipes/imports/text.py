"""A recipe of schema 1 as YAML with comments, which reads back as the same recipe."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from sparkd.lib.text import printable
from sparkd.recipes.imports.convert import Imported
from sparkd.recipes.schema import Image

_PLAIN = re.compile(r"[A-Za-z_/][A-Za-z0-9_./-]*(?::[A-Za-z0-9_./-]+)*")
_NUMBER = re.compile(r"-?[1-9][0-9]{0,17}|0|0\.[0-9]{0,3}[1-9]")
_WORDS_OF_YAML = ("true", "false", "null", "yes", "no", "on", "off", "y", "n")


def render(imported: Imported, file: str) -> str:
    recipe = imported.recipe
    lines = [f"# Imported from {_line(file)} ({imported.format})."]
    if imported.notes:
        lines += ["#", "# What is not below, or is for you to do:"]
        lines += [f"#   line {note.line}: {_line(note.text)}" for note in imported.notes]
    lines += ["schema: 1", f"name: {_text(recipe.name)}"]
    if recipe.description:
        lines.append(f"description: {_text(recipe.description)}")
    lines += [f"source: {_text(recipe.source)}", ""]
    lines += [
        "model:",
        f"  path: {_text(recipe.model.path)}",
        f"  served_name: {_text(recipe.model.served_name)}",
        "",
    ]
    lines += ["image:", f"  ref: {_text(recipe.image.ref)}"]
    if recipe.image.entrypoint != Image().entrypoint:
        lines.append(f"  entrypoint: {_flow(recipe.image.entrypoint)}")
    lines += ["", *_section("nodes", recipe.nodes.model_dump(exclude_unset=True))]
    lines += _section("args", recipe.args)
    lines += _section("env", recipe.env)
    lines += _section("container", recipe.container.model_dump(exclude_unset=True))
    lines += _section("caches", recipe.caches)
    return "\n".join(lines).rstrip() + "\n"


def _line(text: str) -> str:
    return printable(" ".join(text.split()))


def _section(name: str, entries: Mapping[str, object]) -> Iterator[str]:
    if entries:
        yield f"{name}:"
        # A variable is text, also where it looks like a number.
        write = _text if name == "env" else _flow
        yield from (f"  {_text(key)}: {write(value)}" for key, value in entries.items())
        yield ""


def _flow(value: object) -> str:
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{quoted_text(str(key))}: {_flow(one)}" for key, one in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(_flow(one) for one in value) + "]"
    return scalar(value)


def scalar(value: object) -> str:
    """A value of which a flag gets the text: numbers may look like numbers."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value) if _NUMBER.fullmatch(str(value)) else _text(value)


def _text(value: object) -> str:
    text = str(value)
    return text if _PLAIN.fullmatch(text) and text.lower() not in _WORDS_OF_YAML else quoted_text(text)


def quoted_text(text: str) -> str:
    """As one line, whatever is in it."""
    if text.isprintable():
        return "'" + text.replace("'", "''") + "'"
    return '"' + "".join(_escaped(char) for char in text) + '"'


def _escaped(char: str) -> str:
    if char in '"\\':
        return f"\\{char}"
    return char if char.isprintable() else f"\\U{ord(char):08x}"
