"""Imports files of foreign recipes: each gives a recipe as YAML with notes, or a fault with file and line."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path

from msgspec import Struct

from sparkd.lib.errors import ConfigError
from sparkd.lib.text import printable, read_file
from sparkd.recipes.importers.convert import Imported, convert
from sparkd.recipes.importers.source import Overrides, Unusable
from sparkd.recipes.schema import Image
from sparkd.recipes.yaml import YamlError, parse_as_pyyaml

SUFFIXES = (".yaml", ".yml")
_NOT_IN_A_NAME = re.compile(r"[^a-z0-9._-]+")
_PLAIN = re.compile(r"[A-Za-z_/][A-Za-z0-9_./-]*(?::[A-Za-z0-9_./-]+)*")
_NUMBER = re.compile(r"-?[1-9][0-9]{0,17}|0|0\.[0-9]{0,3}[1-9]")
_WORDS_OF_YAML = ("true", "false", "null", "yes", "no", "on", "off", "y", "n")


class Result(Struct, frozen=True):
    name: str
    text: str
    """The recipe as YAML."""
    notes: tuple[str, ...]
    """Each with file and line."""


def find_files(path: Path) -> list[Path]:
    """The file, or every YAML file below the folder except hidden ones. Raises ConfigError if there is none."""
    if not path.is_dir():
        return [path]
    files = sorted(_below(path))
    if not files:
        raise ConfigError(f"{path}: holds no file *.yaml")
    return files


def _below(folder: Path) -> Iterator[Path]:
    def failed(error: OSError) -> None:
        raise ConfigError(f"{error.filename}: cannot be read: {(error.strerror or '').lower()}")

    for here, folders, files in os.walk(folder, onerror=failed):
        folders[:] = [name for name in folders if not name.startswith(".")]
        yield from (Path(here, name) for name in files if name.endswith(SUFFIXES) and not name.startswith("."))


def import_file(path: Path, overrides: Overrides, taken: Collection[str] = ()) -> Result:
    """Convert one file, under a name that is not in `taken`. Raises ConfigError."""
    try:
        text = read_file(path)
        document = parse_as_pyyaml(text)
    except FileNotFoundError:
        raise ConfigError(f"{path}: does not exist") from None
    except YamlError as error:
        raise ConfigError(printable(f"{path}: {error}")) from None
    try:
        result = convert(document, _choose_name(path, taken), overrides)
    except Unusable as fault:
        raise ConfigError(printable(f"{path}: line {document.line(fault.key)}: {fault.reason}")) from None
    notes = tuple(printable(f"{path}: line {note.line}: {note.text}") for note in result.notes)
    return Result(result.recipe.name, _render(result, path.name), notes)


def _choose_name(path: Path, taken: Collection[str]) -> str:
    """The file's name in the letters of recipe names, prefixed with the folder's if taken."""
    names = [_slug(path.stem), _slug(f"{path.parent.name}-{path.stem}")]
    free = [name for name in names if name not in taken]
    if not free:
        raise ConfigError(printable(f"{path}: line 1: another file gives a recipe of the name {names[-1]}"))
    return free[0]


def _slug(text: str) -> str:
    return _NOT_IN_A_NAME.sub("-", text.lower()).strip("-._") or "imported"


def _render(imported: Imported, file: str) -> str:
    recipe = imported.recipe
    lines = [f"# Imported from {_line(file)} ({imported.format})."]
    if imported.notes:
        lines += ["#", "# What is not below, or is for you to do:"]
        lines += [f"#   line {note.line}: {_line(note.text)}" for note in imported.notes]
    lines += ["schema: 1", f"name: {_text(recipe.name)}"]
    if recipe.description:
        lines.append(f"description: {_text(recipe.description)}")
    lines += [f"source: {_text(recipe.source)}", "", "model:", f"  path: {_text(recipe.model.path)}"]
    lines += [f"  served_name: {_text(recipe.model.served_name)}", "", "image:", f"  ref: {_text(recipe.image.ref)}"]
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
        # A variable stays text even if it looks like a number.
        write = _text if name == "env" else _flow
        yield from (f"  {_text(key)}: {write(value)}" for key, value in entries.items())
        yield ""


def _flow(value: object) -> str:
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{quote_text(str(key))}: {_flow(one)}" for key, one in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(_flow(one) for one in value) + "]"
    return format_scalar(value)


def format_scalar(value: object) -> str:
    """A scalar whose text a flag gets; numbers stay unquoted."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value) if _NUMBER.fullmatch(str(value)) else _text(value)


def _text(value: object) -> str:
    text = str(value)
    return text if _PLAIN.fullmatch(text) and text.lower() not in _WORDS_OF_YAML else quote_text(text)


def quote_text(text: str) -> str:
    """Quote any text as one line of YAML."""
    if text.isprintable():
        return "'" + text.replace("'", "''") + "'"
    return '"' + "".join(_escaped(char) for char in text) + '"'


def _escaped(char: str) -> str:
    if char in '"\\':
        return f"\\{char}"
    return char if char.isprintable() else f"\\U{ord(char):08x}"
