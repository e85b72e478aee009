"""Finds recipes by name, merges each with its bases, explains the source of each value, and compares two recipes."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from pathlib import Path

from msgspec import Struct

from sparkd.base import config
from sparkd.base.config.layers import MOST_FAULTS, Check, Key, Layers
from sparkd.base.config.sources import PREFIX
from sparkd.base.lib import recipes_dir
from sparkd.base.lib.errors import AwaitedError, ConfigError
from sparkd.base.lib.text import did_you_mean, format_key, read_file
from sparkd.base.recipes.additions import ADDED_LIMITS, added_env
from sparkd.base.recipes.image import TAGS
from sparkd.base.recipes.schema import Recipe
from sparkd.base.recipes.yaml import Document, YamlError, parse_yaml
from sparkd.base.vllm.args import TABLES, JsonValue
from sparkd.base.vllm.container_paths import kept_caches
from sparkd.base.vllm.flag import parse_amount, parse_json

HINT = "`sparkd recipe schema` describes the format"
NOT_SET_UP, SET_UP_HINT = "this node is not set up: engine.recipe names no recipe", "sudo sparkd init --plan"
ADMINISTRATORS = "etc/sparkd/recipes"
SUFFIX = ".yaml"
OWN = ("schema", "name", "description", "extends", "expect")
"""Keys that describe the recipe itself and are never inherited."""
_TABLES: dict[Key, Check] = {("caches",): dict, **{(name,): check for name, check in TABLES.items()}}

EXAMPLES = {"args": ", such as max-num-seqs: 4", "env": ", such as NCCL_DEBUG: INFO"}
"""An entry of each table, as people write it."""

ORDER = (
    "image", "model", "nodes", "executor", "args", "env", "secrets", "container", "caches", "memory_bytes", "host",
    "expect",
)  # fmt: skip
"""The sections to compare, the most important first. The others describe the recipe."""
COUNTS = ("max-model-len", "max-num-batched-tokens", "max-num-seqs", "block-size")
"""Flags for which vLLM reads 128K as 131072."""


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


def recipe_folders(root: Path = Path("/")) -> tuple[Path, ...]:
    """The administrator's folder, then the shipped one. The first that contains a name wins."""
    return root / ADMINISTRATORS, recipes_dir()


def find_recipes(folders: Sequence[Path]) -> dict[str, Path]:
    """The file of every recipe, sorted by name."""
    recipes: dict[str, Path] = {}
    for folder in folders:
        try:
            files = sorted(folder.iterdir())
        except FileNotFoundError:
            continue
        except OSError as error:
            raise ConfigError(f"{folder}: cannot be read: {error.strerror}") from None
        for path in files:
            if path.suffix == SUFFIX:
                recipes.setdefault(path.stem, path)
    return dict(sorted(recipes.items()))


def _find_file(name: str, folders: Sequence[Path]) -> Path:
    if not name:
        raise ConfigError(NOT_SET_UP, SET_UP_HINT)
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


STAND_IN: Mapping[Key, object] = {("schema",): 1, ("name",): "x", ("model", "path"): "x", ("image", "ref"): "x"}
"""Values for the required keys, in place of wrong or missing ones: so the other values are checked, too."""


def load_recipe(name: str, folders: Sequence[Path]) -> Loaded:
    """Load and validate a recipe by name or absolute path. Raises ConfigError with its first faults."""
    loaded, problems = read_recipe(name, folders)
    if problems or loaded is None:
        raise ConfigError("\n".join(problems[:MOST_FAULTS]), HINT)
    return loaded


def read_recipe(name: str, folders: Sequence[Path]) -> tuple[Loaded | None, list[str]]:
    """A recipe, if possible without its wrong values, and every fault. Raises ConfigError for an unreadable file."""
    chain = _read_chain(name, folders)
    recipe_file = chain[0]
    layers = Layers(Recipe, _TABLES, _describe_mapping, lambda path: (step for step in path if step not in TAGS))
    for file in reversed(chain):
        left_out = () if file is recipe_file else OWN
        values = {
            key: {} if value is None and layers.is_merged((key,)) else value
            for key, value in file.document.data.items()
            if key not in left_out
        }
        layers.add(values, file.at)
    recipe = layers.validate(recipe_file.at, STAND_IN)
    written_name = recipe_file.document.data.get("name")
    if recipe and written_name == recipe.name != recipe_file.path.stem and recipe_file.path.parent in folders:
        name = format_key(("name",), recipe.name)
        layers.problems.append(f"{recipe_file.at(('name',))}: {name}: must be the file's name")
    if recipe is None:
        return None, layers.problems
    origins = layers.origins()
    has_nearer_image = _depth(chain, origins, "image.ref") < _depth(chain, origins, "image.build")
    if has_nearer_image and origins.pop("image.build", ""):
        # A base says how its own image is built, not the one that this recipe names instead.
        recipe = recipe.model_copy(update={"image": recipe.image.model_copy(update={"build": ""})})
    return Loaded(recipe, tuple(file.path for file in chain), origins), layers.problems


def _describe_mapping(key: str) -> str:
    return f"a mapping: write NAME: VALUE lines below {key}:{EXAMPLES.get(key, '')}"


def _depth(chain: Sequence[_File], origins: Mapping[str, str], key: str) -> int:
    """Number of files from the recipe's own to the one that gives a value; that of all files where none does."""
    path = origins.get(key, "").rpartition(": line ")[0]
    return next((depth for depth, file in enumerate(chain) if str(file.path) == path), len(chain))


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
        hides_base = base == path.stem and path.parent in folders
        try:
            path = _find_file(base, folders[list(folders).index(path.parent) + 1 :] if hides_base else folders)
        except ConfigError as error:
            raise ConfigError(f"{where}: {error.reason}", error.hint) from None


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


class Explained(Struct, frozen=True):
    key: str
    value: JsonValue
    by: str
    """recipe, base, settings, environment or sparkd."""
    where: str
    """File and line; a file alone for settings; the variable's name for the environment."""
    instead_of: JsonValue = None
    """The recipe's own value, where settings override it."""


def explain(loaded: Loaded, configured: config.Loaded | None) -> tuple[Explained, ...]:
    """The values that are set, in the order of the format."""
    from_recipe = _explain_recipe(loaded)
    values = from_recipe if configured is None else {**from_recipe, **_explain_settings(configured, from_recipe)}
    values = {**values, **_explain_additions(loaded.recipe, configured.settings if configured else config.Settings())}
    sections = [*(key.partition(".")[0] for key in from_recipe), *TABLES, "container"]
    return tuple(sorted(values.values(), key=lambda value: sections.index(value.key.partition(".")[0])))


def _explain_recipe(loaded: Loaded) -> dict[str, Explained]:
    explained: dict[str, Explained] = {}
    for section, content in loaded.recipe.model_dump(mode="json", by_alias=True).items():
        inner = {f"{section}.{name}": value for name, value in content.items()} if isinstance(content, dict) else {}
        for key, value in {section: content, **inner}.items():
            if where := loaded.origins.get(key):
                by = "recipe" if where.startswith(f"{loaded.files[0]}: ") else "base"
                explained[key] = Explained(key, value, by, where)
    return explained


def _explain_additions(recipe: Recipe, settings: config.Settings) -> dict[str, Explained]:
    nodes = min(max(recipe.nodes.min, len(settings.cluster.nodes)), recipe.nodes.max)
    limits = {f"container.ulimits.{key}": ADDED_LIMITS[key] for key in ADDED_LIMITS.keys() - recipe.container.ulimits}
    values = {f"env.{name}": text for name, text in added_env(recipe, settings, nodes).items()} | limits
    added = {key: Explained(key, value, "sparkd", "null leaves it out") for key, value in values.items()}
    container, key = recipe.container, "container.shm_bytes"
    if container.shm_bytes is None and container.shm_size_bytes:
        added[key] = Explained(key, container.shm_size_bytes, "sparkd", "the recipe may give another size")
    return added


def _explain_settings(configured: config.Loaded, from_recipe: Mapping[str, Explained]) -> dict[str, Explained]:
    engine, explained = configured.settings.engine, dict[str, Explained]()
    values: dict[str, JsonValue] = {"image.ref": engine.image} if engine.image else {}
    for table in TABLES:
        values |= {f"{table}.{name}": value for name, value in getattr(engine, table).items()}
    for key, value in values.items():
        where = configured.origins["engine.image" if key == "image.ref" else f"engine.{key}"]
        by = "environment" if where.startswith(PREFIX) else "settings"
        explained[key] = Explained(key, value, by, where, from_recipe[key].value if key in from_recipe else None)
    return explained


class Difference(Struct, frozen=True):
    """A value that differs between two recipes: both as JSON, empty for a missing one."""

    key: str
    left: str
    right: str


def compare_recipes(left: Recipe, right: Recipe) -> tuple[Difference, ...]:
    """The differences, sorted by section as in ORDER."""
    lefts, rights = normalize(left), normalize(right)
    keys = sorted(lefts.keys() | rights.keys(), key=lambda key: (ORDER.index(key.partition(".")[0]), key))
    differences = (Difference(key, lefts.get(key, ""), rights.get(key, "")) for key in keys)
    return tuple(difference for difference in differences if difference.left != difference.right)


def normalize(recipe: Recipe) -> dict[str, str]:
    """Every value as canonical JSON, by its dotted key. Without null values."""
    variables = {**added_env(recipe, config.Settings(), recipe.nodes.max), **recipe.env}
    env = {name: text for name, text in variables.items() if text is not None}
    mounted = [volume.target for volume in recipe.container.volumes]
    values = {
        **recipe.model_dump(mode="json", by_alias=True),
        "args": normalize_switches(recipe.args),
        "env": env,
        "caches": kept_caches(recipe.caches, env, mounted, gpu=recipe.container.gpus == "all"),
    }
    return {
        key: json.dumps(value, sort_keys=True, ensure_ascii=False)
        for section in ORDER
        for key, value in _flatten(section, values[section])
    }


def normalize_switches(args: Mapping[str, JsonValue]) -> dict[str, JsonValue]:
    """Flags with every switch under its positive name: `no-x: true` and `x: false` become `x: false`."""
    flags: dict[str, JsonValue] = {}
    for name, value in args.items():
        if isinstance(value, bool):
            flags[name.removeprefix("no-")] = value is not name.startswith("no-")
        else:
            flags[name] = _normalize_value(name, value)
    return flags


def _normalize_value(name: str, value: JsonValue) -> JsonValue:
    """The value as vLLM reads it."""
    if not isinstance(value, str):
        return value
    if name in COUNTS and (count := parse_amount(value)) is not None:
        return count
    if value.lstrip().startswith(("{", "[")):
        return parse_json(value) or value
    with suppress(ValueError):
        return float(value) if value.strip() else value
    return value


def _flatten(key: str, value: JsonValue) -> Iterator[tuple[str, JsonValue]]:
    if isinstance(value, Mapping):
        for name, inner in value.items():
            yield from _flatten(f"{key}.{name}", inner)
    elif value is not None:
        yield key, _normalize_number(key, value)


def _normalize_number(key: str, value: JsonValue) -> JsonValue:
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, list):
        values = [_normalize_number(key, inner) for inner in value]
        return sorted(values, key=json.dumps) if key in ("container.devices", "container.volumes") else values
    return value
