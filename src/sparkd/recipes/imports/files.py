"""Files and folders of foreign recipes: each becomes a recipe with its notes, or a fault with file and line."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterator
from pathlib import Path

from msgspec import Struct

from sparkd import text_file
from sparkd.errors import ConfigError
from sparkd.lib.text import printable
from sparkd.recipes.document import YamlError, parse_as_pyyaml
from sparkd.recipes.imports.convert import Imported, convert
from sparkd.recipes.imports.source import Overrides, Unusable
from sparkd.recipes.imports.text import render

SUFFIXES = (".yaml", ".yml")
_NOT_IN_A_NAME = re.compile(r"[^a-z0-9._-]+")


class Result(Struct, frozen=True):
    name: str
    text: str
    """The recipe as YAML."""
    notes: tuple[str, ...]
    """With file and line."""


def found(path: Path) -> list[Path]:
    """The file, or every YAML file below the folder, but for hidden ones. Raises ConfigError where there is none."""
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


def imported(path: Path, given: Overrides, taken: Collection[str] = ()) -> Result:
    """The recipe, by a name that is not taken. Raises ConfigError."""
    try:
        text = text_file.read(path)
        document = parse_as_pyyaml(text)
    except FileNotFoundError:
        raise ConfigError(f"{path}: does not exist") from None
    except YamlError as error:
        raise ConfigError(printable(f"{path}: {error}")) from None
    try:
        result: Imported = convert(document, _name(path, taken), given)
    except Unusable as fault:
        key = fault.key
        while key and key not in document.lines:
            key = key[:-1]
        raise ConfigError(printable(f"{path}: line {document.lines.get(key, 1)}: {fault.reason}")) from None
    notes = tuple(printable(f"{path}: line {note.line}: {note.text}") for note in result.notes)
    return Result(result.recipe.name, render(result, path.name), notes)


def _name(path: Path, taken: Collection[str]) -> str:
    """The file's, in letters that a recipe's name may have; with its folder's before it where that is taken."""
    names = [_slug(path.stem), _slug(f"{path.parent.name}-{path.stem}")]
    free = [name for name in names if name not in taken]
    if not free:
        raise ConfigError(printable(f"{path}: line 1: another file gives a recipe of the name {names[-1]}"))
    return free[0]


def _slug(text: str) -> str:
    return _NOT_IN_A_NAME.sub("-", text.lower()).strip("-._") or "imported"
