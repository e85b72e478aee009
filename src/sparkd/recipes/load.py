"""A recipe by name: its file, the recipes that it extends, and every fault with its file and line."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from msgspec import Struct, field
from pydantic import ValidationError
from pydantic_core import ErrorDetails

from sparkd import faults, flags, text_file
from sparkd.errors import ConfigError
from sparkd.nearest import did_you_mean
from sparkd.recipes import lookup
from sparkd.recipes.document import Document, Key, YamlError, parse
from sparkd.recipes.schema import COMMAND, LINES, Recipe
from sparkd.settings.kinds import Section

HINT = "`sparkd recipe schema` describes the format"
OWN = ("schema", "name", "description", "extends", "expect")
"""What a recipe says of itself and never takes from its base."""


class Loaded(Struct, frozen=True):
    recipe: Recipe
    files: tuple[Path, ...]
    """The recipe's own file, then those of its bases."""
    origins: Mapping[str, str]
    """File and line that set a dotted key, such as `args.max-model-len`."""


class _Written(Struct, frozen=True):
    path: Path
    document: Document

    def at(self, key: Key) -> str:
        """File and line of the nearest thing around `key`."""
        while key and key not in self.document.lines:
            key = key[:-1]
        return f"{self.path}: line {self.document.lines.get(key, 1)}"


class _Merged(Struct):
    values: dict[Key, object] = field(default_factory=dict)
    origins: dict[Key, _Written] = field(default_factory=dict)
    written_as: dict[Key, Key] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)

    def put(self, key: Key, value: object, by: _Written, written_as: Key) -> None:
        self.values[key], self.origins[key], self.written_as[key] = value, by, written_as

    def nested(self) -> dict[str, object]:
        found: dict[str, object] = {}
        for key, value in self.values.items():
            if len(key) == 1:
                found[key[0]] = value
            else:
                section = found.setdefault(key[0], {})
                assert isinstance(section, dict)
                section[key[1]] = value
        return found

    def at(self, key: Key, otherwise: _Written) -> str:
        """File and line that said `key`."""
        flat = key[:2] if key[:2] in self.origins else key[:1]
        by = self.origins.get(flat, otherwise)
        return by.at((*self.written_as.get(flat, flat), *key[len(flat) :]))


def load(name: str, folders: Sequence[Path]) -> Loaded:
    """The recipe `name` (or the absolute path of one), whole and checked. Raises ConfigError with every fault."""
    chain = _chain(name, folders)
    merged = _Merged()
    for position, written in reversed(list(enumerate(chain))):
        _merge(merged, written, is_base=position > 0)
    recipe = None
    try:
        recipe = Recipe.model_validate(merged.nested())
    except ValidationError as error:
        merged.problems.extend(_lines(error.errors(), merged, chain[0]))
    if recipe and recipe.name != chain[0].path.stem and chain[0].path.parent in folders:
        merged.problems.append(
            f"{chain[0].at(('name',))}: {faults.said(('name',), recipe.name)}: must be the file's name"
        )
    if merged.problems or recipe is None:
        raise ConfigError("\n".join(merged.problems), HINT)
    origins = {".".join(key): by.at(merged.written_as[key]) for key, by in merged.origins.items()}
    return Loaded(recipe, tuple(written.path for written in chain), origins)


def _chain(name: str, folders: Sequence[Path]) -> list[_Written]:
    """The recipe's own document first, then its base's, and so on."""
    path, chain = lookup.find(name, folders), list[_Written]()
    while True:
        if any(path == written.path for written in chain):
            way = " extends ".join(written.path.stem for written in chain)
            raise ConfigError(f"{chain[-1].at(('extends',))}: {way} extends {path.stem}: a circle", "break it")
        written = _read(path)
        chain.append(written)
        base = written.document.data.get("extends")
        if base is None:
            return chain
        if not isinstance(base, str) or "/" in base:
            raise ConfigError(f"{written.at(('extends',))}: {faults.said(('extends',), base)}: must be a recipe's name")
        hidden_by_this = base == path.stem and path.parent in folders
        try:
            path = lookup.find(base, folders[list(folders).index(path.parent) + 1 :] if hidden_by_this else folders)
        except ConfigError as error:
            raise ConfigError(f"{written.at(('extends',))}: {error.reason}", error.hint) from None


def _read(path: Path) -> _Written:
    try:
        return _Written(path, parse(text_file.read(path), keeps_text=_is_passed_on))
    except FileNotFoundError:
        raise ConfigError(f"{path}: does not exist") from None
    except YamlError as error:
        raise ConfigError(f"{path}: {error}", HINT) from None


def _is_passed_on(key: Key) -> bool:
    """A value that a program gets as text: a variable, a flag's own value, not a number within JSON."""
    return key[0] == "env" or (key[0] == "args" and (len(key) == 2 or (len(key) == 3 and key[2].startswith("["))))


def _merge(merged: _Merged, written: _Written, is_base: bool) -> None:
    """Lay `written` over what its bases said, entry by entry."""
    for key, value in written.document.data.items():
        if is_base and key in OWN:
            continue
        if key not in _MERGED:
            merged.put((key,), value, written, (key,))
        elif isinstance(value, Mapping):
            _merge_section(merged, written, key, value)
        elif value is not None:
            merged.problems.append(f"{written.at((key,))}: {faults.said((key,), value)}: must be a mapping")


def _merge_section(merged: _Merged, written: _Written, section: str, table: Mapping[str, object]) -> None:
    names: set[str] = set()
    for name, value in table.items():
        checked: Mapping[str, object] = {name: value}
        try:
            if section in flags.TABLES:
                checked = flags.TABLES[section]({name: value})
        except ValueError as error:
            merged.problems.append(f"{written.at((section, name))}: {section}: {error}")
            continue
        for right_name, right_value in checked.items():
            if right_name in names:
                merged.problems.append(f"{written.at((section, name))}: {section}: --{right_name} is given twice")
            names.add(right_name)
            merged.put((section, right_name), right_value, written, (section, name))


def _lines(errors: list[ErrorDetails], merged: _Merged, recipe: _Written) -> Iterator[str]:
    for error in errors:
        context = error.get("ctx", {})
        key = (
            tuple(context["at"].split("."))
            if "at" in context
            else tuple(_step(one) for one in error["loc"] if one not in (COMMAND, LINES))
        )
        where = merged.at(key, recipe)
        if error["type"] == "extra_forbidden":
            dotted = ".".join(key)
            yield f"{where}: {dotted}: there is no such key{did_you_mean(dotted, _known(len(key)))}"
        elif error["type"] == "missing":
            yield f"{where}: {'.'.join(key)} is missing"
        else:
            found = context.get("found", error["input"])
            yield f"{where}: {faults.said(key, found)}: {faults.needed(error['msg'])}"


def _step(step: str | int) -> str:
    return step if isinstance(step, str) else f"[{step}]"


def _known(depth: int) -> list[str]:
    """Dotted names of keys as deep as that."""
    names = [info.alias or name for name, info in Recipe.model_fields.items()]
    if depth < 2:
        return names
    return [
        f"{name}.{inner_info.alias or inner}"
        for name, section in _SECTIONS.items()
        for inner, inner_info in section.model_fields.items()
    ]


_SECTIONS: dict[str, type[Section]] = {
    name: type(info.default) for name, info in Recipe.model_fields.items() if isinstance(info.default, Section)
}
_MERGED = (*_SECTIONS, *flags.TABLES, "caches")
