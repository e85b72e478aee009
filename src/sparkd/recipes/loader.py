"""Finds recipes by name, merges each with its bases, and reports each fault and the source of each value."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from msgspec import Struct, field
from pydantic import ValidationError
from pydantic_core import ErrorDetails

from sparkd import config
from sparkd.config.sources import PREFIX
from sparkd.config.types import Section
from sparkd.lib import recipes_dir
from sparkd.lib.errors import ConfigError
from sparkd.lib.text import did_you_mean, format_key, read_file, validator_message
from sparkd.recipes.schema import COMMAND, LINES, Recipe
from sparkd.recipes.yaml import Document, Key, YamlError, parse_yaml
from sparkd.vllm.args import TABLES, JsonValue

HINT = "`sparkd recipe schema` describes the format"
ADMINISTRATORS = "etc/sparkd/recipes"
SUFFIX = ".yaml"
OWN = ("schema", "name", "description", "extends", "expect")
"""Keys that describe the recipe itself and are never inherited."""
_SECTIONS: dict[str, type[Section]] = {
    name: type(info.default) for name, info in Recipe.model_fields.items() if isinstance(info.default, Section)
}
_MERGED = (*_SECTIONS, *TABLES, "caches")


class Loaded(Struct, frozen=True):
    recipe: Recipe
    files: tuple[Path, ...]
    """The recipe's own file, then those of its bases."""
    origins: Mapping[str, str]
    """File and line of each dotted key, such as `args.max-model-len`."""


class _File(Struct, frozen=True):
    path: Path
    document: Document

    def at(self, key: Key) -> str:
        return f"{self.path}: line {self.document.line(key)}"


class _Entry(NamedTuple):
    value: object
    file: _File
    written_as: Key

    def at(self, rest: Key = ()) -> str:
        return self.file.at((*self.written_as, *rest))


class _Merged(Struct):
    """Entries by key: (section, name) in sections and tables, otherwise (name,)."""

    entries: dict[Key, _Entry] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)

    def nested(self) -> dict[str, object]:
        found: dict[str, object] = {}
        for (name, *inner), entry in self.entries.items():
            if inner:
                section = found.setdefault(name, {})
                assert isinstance(section, dict)
                section[inner[0]] = entry.value
            else:
                found[name] = entry.value
        return found

    def at(self, key: Key, otherwise: _File) -> str:
        """File and line that set `key`."""
        flat = key[:2] if key[:2] in self.entries else key[:1]
        return self.entries[flat].at(key[len(flat) :]) if flat in self.entries else otherwise.at(key)


def recipe_folders(root: Path = Path("/")) -> tuple[Path, ...]:
    """The administrator's folder, then the shipped one. The first that contains a name wins."""
    return root / ADMINISTRATORS, recipes_dir()


def find_recipes(folders: Sequence[Path]) -> dict[str, Path]:
    """The file of every recipe, sorted by name."""
    found: dict[str, Path] = {}
    for folder in folders:
        try:
            files = sorted(folder.iterdir())
        except FileNotFoundError:
            continue
        except OSError as error:
            raise ConfigError(f"{folder}: cannot be read: {error.strerror}") from None
        for path in files:
            if path.suffix == SUFFIX:
                found.setdefault(path.stem, path)
    return dict(sorted(found.items()))


def _find_file(name: str, folders: Sequence[Path]) -> Path:
    if name.startswith("/"):
        return Path(name)
    known = find_recipes(folders)
    if name in known:
        return known[name]
    searched = " and ".join(str(folder) for folder in folders) or "no folder"
    raise ConfigError(
        f"there is no recipe {name}{did_you_mean(name, known)} (looked in {searched})",
        "`sparkd recipe list` shows them all",
    )


def load_recipe(name: str, folders: Sequence[Path]) -> Loaded:
    """Load and validate a recipe by name or absolute path. Raises ConfigError with every fault."""
    chain = _read_chain(name, folders)
    own, merged, recipe = chain[0], _Merged(), None
    for file in reversed(chain):
        _merge_file(merged, file, is_base=file is not own)
    try:
        recipe = Recipe.model_validate(merged.nested())
    except ValidationError as error:
        merged.problems.extend(_describe(error.errors(), merged, own))
    if recipe and recipe.name != own.path.stem and own.path.parent in folders:
        found = format_key(("name",), recipe.name)
        merged.problems.append(f"{own.at(('name',))}: {found}: must be the file's name")
    if merged.problems or recipe is None:
        raise ConfigError("\n".join(merged.problems), HINT)
    origins = {".".join(key): entry.at() for key, entry in merged.entries.items()}
    return Loaded(recipe, tuple(file.path for file in chain), origins)


def _read_chain(name: str, folders: Sequence[Path]) -> list[_File]:
    """The recipe's own document, then that of each base."""
    path, chain = _find_file(name, folders), list[_File]()
    while True:
        if any(path == file.path for file in chain):
            cycle = " extends ".join(file.path.stem for file in chain)
            raise ConfigError(f"{chain[-1].at(('extends',))}: {cycle} extends {path.stem}: a circle", "break it")
        file = _read_file(path)
        chain.append(file)
        base, where = file.document.data.get("extends"), file.at(("extends",))
        if base is None:
            return chain
        if not isinstance(base, str) or "/" in base:
            raise ConfigError(f"{where}: {format_key(('extends',), base)}: must be a recipe's name")
        hidden_by_this = base == path.stem and path.parent in folders
        try:
            path = _find_file(base, folders[list(folders).index(path.parent) + 1 :] if hidden_by_this else folders)
        except ConfigError as error:
            raise ConfigError(f"{where}: {error.reason}", error.hint) from None


def _read_file(path: Path) -> _File:
    try:
        return _File(path, parse_yaml(read_file(path), keeps_text=_is_passed_on))
    except FileNotFoundError:
        raise ConfigError(f"{path}: does not exist") from None
    except YamlError as error:
        raise ConfigError(f"{path}: {error}", HINT) from None


def _is_passed_on(key: Key) -> bool:
    """Whether the program gets this value as text: a variable, or a flag's own value outside JSON."""
    return key[0] == "env" or (key[0] == "args" and (len(key) == 2 or (len(key) == 3 and key[2].startswith("["))))


def _merge_file(merged: _Merged, file: _File, is_base: bool) -> None:
    for key, value in file.document.data.items():
        if is_base and key in OWN:
            continue
        if key not in _MERGED:
            merged.entries[(key,)] = _Entry(value, file, (key,))
        elif isinstance(value, Mapping):
            _merge_section(merged, file, key, value)
        elif value is not None:
            merged.problems.append(f"{file.at((key,))}: {format_key((key,), value)}: must be a mapping")


def _merge_section(merged: _Merged, file: _File, section: str, table: Mapping[str, object]) -> None:
    names: set[str] = set()
    for name, value in table.items():
        written_as, checked = (section, name), {name: value}
        try:
            if section in TABLES:
                checked = {**TABLES[section](checked)}
        except ValueError as error:
            merged.problems.append(f"{file.at(written_as)}: {section}: {error}")
            continue
        for flag, checked_value in checked.items():
            if flag in names:
                merged.problems.append(f"{file.at(written_as)}: {section}: --{flag} is given twice")
            names.add(flag)
            merged.entries[section, flag] = _Entry(checked_value, file, written_as)


def _describe(errors: list[ErrorDetails], merged: _Merged, recipe: _File) -> Iterator[str]:
    for error in errors:
        context = error.get("ctx", {})
        steps = (
            context["at"].split(".")
            if "at" in context
            else (one for one in error["loc"] if one not in (COMMAND, LINES))
        )
        key = tuple(one if isinstance(one, str) else f"[{one}]" for one in steps)
        where, dotted = merged.at(key, recipe), ".".join(key)
        if error["type"] == "extra_forbidden":
            yield f"{where}: {dotted}: there is no such key{did_you_mean(dotted, _known_keys(len(key)))}"
        elif error["type"] == "missing":
            yield f"{where}: {dotted} is missing"
        else:
            found = format_key(key, context.get("found", error["input"]))
            yield f"{where}: {found}: {validator_message(error['msg'])}"


def _known_keys(depth: int) -> list[str]:
    if depth < 2:
        return [info.alias or name for name, info in Recipe.model_fields.items()]
    return [
        f"{name}.{info.alias or inner}"
        for name, section in _SECTIONS.items()
        for inner, info in section.model_fields.items()
    ]


class Explained(Struct, frozen=True):
    key: str
    value: JsonValue
    by: str
    """recipe, base, settings or environment."""
    where: str
    """File and line; a file alone for settings; the variable's name for the environment."""
    instead_of: JsonValue = None
    """The recipe's own value, where settings override it."""


def explain(loaded: Loaded, configured: config.Loaded | None) -> tuple[Explained, ...]:
    """The values that are set, in the order of the format."""
    own = dict(_from_recipe(loaded))
    overrides = {} if configured is None else dict(_from_settings(configured, own))
    sections = [*(key.partition(".")[0] for key in own), *TABLES]
    values = {**own, **overrides}.values()
    return tuple(sorted(values, key=lambda one: sections.index(one.key.partition(".")[0])))


def _from_recipe(loaded: Loaded) -> Iterator[tuple[str, Explained]]:
    for name, value in loaded.recipe.model_dump(mode="json", by_alias=True).items():
        entries = value.items() if isinstance(value, dict) and name != "expect" else [("", value)]
        for entry, one in entries:
            key = f"{name}.{entry}" if entry else name
            where = loaded.origins.get(key)
            if where:
                by = "recipe" if where.startswith(f"{loaded.files[0]}: ") else "base"
                yield key, Explained(key, one, by, where)


def _from_settings(configured: config.Loaded, own: dict[str, Explained]) -> Iterator[tuple[str, Explained]]:
    engine = configured.settings.engine
    values: dict[str, JsonValue] = {"image.ref": engine.image} if engine.image else {}
    for table in TABLES:
        values |= {f"{table}.{name}": value for name, value in getattr(engine, table).items()}
    for key, value in values.items():
        where = configured.origins["engine.image" if key == "image.ref" else f"engine.{key}"]
        by = "environment" if where.startswith(PREFIX) else "settings"
        yield key, Explained(key, value, by, where, own[key].value if key in own else None)
