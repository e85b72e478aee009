"""Loads a recipe: reads its file, merges it with its bases, and validates the result."""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path

from msgspec import Struct

from sparkd.base.config.layers import MOST_FAULTS, Key, Layers, Location, TableCheck
from sparkd.base.lib.errors import AwaitedError, ConfigError
from sparkd.base.lib.text import format_key
from sparkd.base.lib.text_file import read_file
from sparkd.base.recipes.image import TAGS
from sparkd.base.recipes.lookup import find_file
from sparkd.base.recipes.schema import Recipe
from sparkd.base.recipes.yaml import Document, YamlError, parse_yaml
from sparkd.base.vllm.args import TABLE_CHECKS, describe_repeat

HINT = "`sparkd recipe schema` describes the format"
OWN = ("schema", "name", "description", "extends", "expect")
"""Keys that describe the recipe itself and are never inherited."""
STAND_IN: Mapping[Key, object] = {("schema",): 1, ("name",): "x", ("model", "path"): "x", ("image", "ref"): "x"}
"""Values for the required keys, in place of wrong or missing ones: so the other values are checked, too."""
_TABLES: dict[Key, TableCheck] = {("caches",): dict, **{(name,): check for name, check in TABLE_CHECKS.items()}}
EXAMPLES = {"args": ", such as max-num-seqs: 4", "env": ", such as NCCL_DEBUG: INFO"}
"""An entry of each table, as people write it."""


class Origin(Struct, frozen=True):
    """The place where a value is written."""

    path: Path
    line: int

    def __str__(self) -> str:
        return f"{self.path}: line {self.line}"


class LoadedRecipe(Struct, frozen=True):
    recipe: Recipe
    files: tuple[Path, ...]
    """The recipe's own file, then those of its bases."""
    origins: Mapping[str, Origin]
    """By dotted key, such as `args.max-model-len`."""


class _File(Struct, frozen=True):
    path: Path
    document: Document

    def at(self, key: Key) -> Origin:
        return Origin(self.path, self.document.line(key))


def load_recipe(name: str, folders: Sequence[Path]) -> LoadedRecipe:
    """Load and validate a recipe by name or absolute path. Raises ConfigError with its first faults."""
    loaded, problems = read_recipe(name, folders)
    if problems or loaded is None:
        raise ConfigError("\n".join(problems[:MOST_FAULTS]), HINT)
    return loaded


def read_recipe(name: str, folders: Sequence[Path]) -> tuple[LoadedRecipe | None, list[str]]:
    """A recipe, if possible without its wrong values, and every fault. Raises ConfigError for an unreadable file."""
    chain = _read_chain(name, folders)
    recipe_file = chain[0]
    layers = Layers[Recipe, Origin](Recipe, _TABLES, _describe_mapping, _drop_tags, describe_repeat)
    for file in reversed(chain):
        left_out = () if file is recipe_file else OWN
        values = {
            key: {} if value is None and layers.is_merged((key,)) else value  # a section's key with nothing below it
            for key, value in file.document.data.items()
            if key not in left_out
        }
        layers.add(values, file.at)
    recipe = layers.validate_partly(recipe_file.at, STAND_IN)
    if recipe is None:
        return None, layers.problems
    has_own_name = recipe_file.document.data.get("name") == recipe.name
    is_found_by_name = recipe_file.path.parent in folders
    if has_own_name and is_found_by_name and recipe.name != recipe_file.path.stem:
        shown_name = format_key(("name",), recipe.name)
        layers.problems.append(f"{recipe_file.at(('name',))}: {shown_name}: must be the file's name")
    loaded = LoadedRecipe(recipe, tuple(file.path for file in chain), layers.origins())
    return _drop_foreign_build(loaded), layers.problems


def _drop_foreign_build(loaded: LoadedRecipe) -> LoadedRecipe:
    """Without `image.build` of a base whose image the recipe replaces: a base says how its own image is built."""
    ref, build = (loaded.origins.get(f"image.{key}") for key in ("ref", "build"))
    if ref is None or build is None or loaded.files.index(ref.path) >= loaded.files.index(build.path):
        return loaded
    image = loaded.recipe.image.model_copy(update={"build": ""})
    origins = {key: origin for key, origin in loaded.origins.items() if key != "image.build"}
    return LoadedRecipe(loaded.recipe.model_copy(update={"image": image}), loaded.files, origins)


def _describe_mapping(key: str) -> str:
    return f"a mapping: write NAME: VALUE lines below {key}:{EXAMPLES.get(key, '')}"


def _drop_tags(location: Location) -> Location:
    """The part of pydantic's location that a person wrote: its tags of a union are no keys."""
    return tuple(step for step in location if step not in TAGS)


def _read_chain(name: str, folders: Sequence[Path]) -> list[_File]:
    """The recipe's own document, then that of each base."""
    path, chain = find_file(name, folders), list[_File]()
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
        hides_base = base == path.stem and path.parent in folders
        later_folders = folders[list(folders).index(path.parent) + 1 :] if hides_base else folders
        try:
            path = find_file(base, later_folders)
        except ConfigError as error:
            raise type(error)(f"{where}: {error.reason}", error.hint) from None


def _read_file(path: Path) -> _File:
    try:
        return _File(path, parse_document(read_file(path)))
    except FileNotFoundError:
        raise AwaitedError(f"{path}: does not exist", "write it, or mount what holds it") from None
    except YamlError as error:
        raise ConfigError(f"{path}: {error}", HINT) from None


@lru_cache(maxsize=64)
def parse_document(text: str) -> Document:
    """Parse each text once: nine tenths of the time to load a recipe are YAML's. sparkd ships some 20 recipes."""
    return parse_yaml(text, keeps_text=_is_passed_on)


def _is_passed_on(key: Key) -> bool:
    """Whether the program gets this value as text: a variable, or a flag's own value outside JSON."""
    return key[0] == "env" or (key[0] == "args" and (len(key) == 2 or (len(key) == 3 and key[2].startswith("["))))
