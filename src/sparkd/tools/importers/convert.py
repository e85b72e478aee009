"""Converts files of other tools' recipes to schema 1: a recipe as YAML with notes, or a fault with file and line."""

import re
from collections.abc import Callable, Collection, Mapping
from math import prod
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace
from pydantic import ValidationError

from sparkd.base.config.types import read_keys_fault
from sparkd.base.lib.errors import ConfigError, UsageError
from sparkd.base.lib.text import format_key, printable, validator_message
from sparkd.base.lib.text_file import read_owned_file
from sparkd.base.recipes.schema import Recipe
from sparkd.base.recipes.types import REPO
from sparkd.base.recipes.yaml import YamlError, parse_as_pyyaml
from sparkd.base.vllm.args import JsonValue, parse_count
from sparkd.base.vllm.flag_values import rank_flags
from sparkd.tools.importers.bundle import Place
from sparkd.tools.importers.bundle_steps import list_steps
from sparkd.tools.importers.command import Serve
from sparkd.tools.importers.endpoint import SNAPSHOT, complete
from sparkd.tools.importers.engine_settings import convert_flags, split_environment
from sparkd.tools.importers.eugr import read_eugr
from sparkd.tools.importers.forms import Form, read_form
from sparkd.tools.importers.kinds import SUFFIXES, unreadable_error
from sparkd.tools.importers.launch import read_inner_engine
from sparkd.tools.importers.mods import File, walk
from sparkd.tools.importers.nvidia import catalogue_name, read_nvidia
from sparkd.tools.importers.nvidia_measurement import is_measurement
from sparkd.tools.importers.options import Launch, LineError, make_fault, redact
from sparkd.tools.importers.ranks import combine
from sparkd.tools.importers.recipe_text import render
from sparkd.tools.importers.source import COMMAND, ForeignRecipe, Overrides, Source, UnusableRecipeError, shorten
from sparkd.tools.importers.sparkrun import read_sparkrun
from sparkd.tools.importers.variables import CommandError
from sparkd.tools.node.recipe_lint import find_errors

_READERS = (read_nvidia, read_eugr, read_sparkrun)
"""One for each tool. The first that knows a recipe reads it."""
_FABRIC = ("devices", ["/dev/infiniband"])
"""A key and value of `container`: without use on a single node, which may not have the device."""
_MOST_RANKS = 9999
"""The most that one flag may give; beyond it a text is no number of ranks."""
_RAY = re.compile(r"--distributed-executor-backend[=\s]+ray\b")
_NOT_IN_A_NAME = re.compile(r"[^a-z0-9._-]+")
_NOT_RUN = {
    "post_exec": "it would run in the container once the engine serves",
    "post_commands": "it would run on the machine that started it once the engine serves",
}
"""Keys with code, and what it would do."""


class Conversion(Struct, frozen=True):
    """A recipe of schema 1, with what a person needs to serve it."""

    name: str
    text: str
    """The recipe as YAML."""
    notes: tuple[str, ...]
    """Notes for people, each with file and line."""
    files: Mapping[str, File]
    """Files to write beside the recipe, by path."""
    steps: tuple[str, ...]
    """Commands from here to an endpoint, once nothing is missing."""
    missing: tuple[str, ...]
    """The notes about what keeps the recipe from an endpoint."""


def find_files(path: Path) -> list[Path]:
    """The file, or every YAML file below the folder except hidden ones and measurements beside a recipe.

    Raises ConfigError if there is none.
    """
    if not path.is_dir():
        return [path]
    try:
        below = [file for file in walk(path, hidden=False) if file.name.endswith(SUFFIXES) and not file.is_dir()]
    except OSError as error:
        raise ConfigError(f"{error.filename}: cannot be read: {(error.strerror or '').lower()}") from None
    files = sorted(file for file in below if not file.name.startswith(".") and not is_measurement(file))
    if not files:
        raise ConfigError(f"{path}: holds no file *.yaml")
    return files


def import_file(
    path: Path, overrides: Overrides, taken: Collection[str] = (), place: Place | None = None
) -> Conversion:
    """Convert one file, under a name that is not in `taken`. Raises as `import_text`."""
    try:
        text, owner = read_owned_file(path)
        return import_text(text, path, overrides, taken, place or Place(), owner)
    except FileNotFoundError:
        raise ConfigError(f"{path}: does not exist") from None


def import_text(
    text: str, path: Path, overrides: Overrides, taken: Collection[str], place: Place, owner: int | None
) -> Conversion:
    """Convert a text. `owner`: uid of the owner of its file `path`, beside which mods lie; None for no file.

    Raises ConfigError with `path` and line, UsageError.
    """
    if form := read_form(text, path, overrides, place.service, owner=owner):
        return import_forms([form], taken, place)
    if place.service or place.image:
        raise UsageError("--service and --image are for a file that starts vLLM", "leave them out, or name that file")
    try:
        document = parse_as_pyyaml(text)
    except YamlError as error:
        raise unreadable_error(text, path, str(error), "") from None
    source = Source(document, None if owner is None else path)
    if not any(source.has(key) for key in ("recipe_version", "model", "command")):
        fault = "line 1: is no recipe: it has none of the keys recipe_version, model and command"
        raise unreadable_error(text, path, fault)
    name = _choose_name(path, taken, catalogue_name(source))
    return _make_result(source, [str(path)], place, lambda: _convert_recipe(source, name, overrides))


def import_forms(forms: list[Form], taken: Collection[str], place: Place) -> Conversion:
    """Convert what all forms start together to one recipe, named by its model. Raises ConfigError with the line.

    A form that is named twice counts once.
    """
    forms = list({Path(form.path).absolute(): form for form in forms}.values())
    source, foreign, serve = combine(forms, place.image)
    snapshot = SNAPSHOT.fullmatch(serve.model)
    name = _choose_name(Path(f"{snapshot[2] if snapshot else serve.model.strip('/')}.model"), taken, "")
    return _make_result(
        source, [form.path for form in forms], place, lambda: _make_recipe(source, name, foreign, serve)
    )


def _make_result(source: Source, files: list[str], place: Place, make: Callable[[], Recipe]) -> Conversion:
    """Complete the recipe that `make` returns. Raises ConfigError with file and line for its UnusableRecipeError."""
    document, file = source.document, source.file or files[0]
    try:
        bundle = complete(source, make(), place)
    except UnusableRecipeError as fault:
        raise make_fault(file, document.line(fault.key), fault.reason) from None
    for error in find_errors(bundle.recipe):
        source.need(COMMAND, redact(error))
    notes = sorted(source.notes, key=lambda note: (note.file, note.line))
    steps = tuple(list_steps(bundle))
    lines = [printable(f"{note.file or file}: line {note.line}: {note.text}") for note in notes]
    missing = tuple(line for line, note in zip(lines, notes, strict=True) if note.is_missing)
    recipe = bundle.recipe
    return Conversion(recipe.name, render(recipe, files, notes, steps), tuple(lines), bundle.files, steps, missing)


def _choose_name(path: Path, taken: Collection[str], wanted: str) -> str:
    """`wanted`, else the file's name, in the letters of recipe names. If taken, the folder's name comes first."""
    names = [_make_slug(wanted or path.stem), _make_slug(f"{path.parent.name}-{wanted or path.stem}")]
    free = [name for name in names if name not in taken]
    if not free:
        raise ConfigError(printable(f"{path}: line 1: another file gives a recipe of the name {names[-1]}"))
    return free[0]


def _make_slug(text: str) -> str:
    return _NOT_IN_A_NAME.sub("-", text.lower()).strip("-._") or "imported"


def _convert_recipe(source: Source, name: str, overrides: Overrides) -> Recipe:
    """Convert another tool's recipe. Raises UnusableRecipeError."""
    try:
        foreign = next(filter(None, (read(source, overrides) for read in _READERS)))
        launch = Launch(source.document.line(COMMAND), foreign.image)
        engine = read_inner_engine(launch, foreign.command, foreign.env, overrides)
    except (CommandError, LineError) as error:
        raise UnusableRecipeError(COMMAND, f"command: {redact(str(error))}") from None
    source.notes += [replace(note, text=f"command: {note.text}") for note in launch.notes]
    foreign = replace(foreign, env={**foreign.env, **engine.env}, secrets={**foreign.secrets, **engine.secrets})
    return _make_recipe(source, name, foreign, engine.serve)


def _make_recipe(source: Source, name: str, foreign: ForeignRecipe, serve: Serve) -> Recipe:
    """Make a recipe of schema 1 whose engine is started by `serve`. Raises UnusableRecipeError."""
    served_names, args = convert_flags(source, serve)
    _note_code(source)
    nodes = _count_nodes(source, foreign, args)
    if foreign.executor == "mp" and nodes["min"] > 1 and _RAY.search(source.text("command") or foreign.command):
        why = "vLLM joins its ranks itself; executor: ray has Ray"
        source.note(COMMAND, f"command: --distributed-executor-backend ray: left out: {why}")
    model, is_alone = serve.model, nodes.get("max") == 1
    env, secrets = split_environment(source, foreign.env, many=nodes["min"] > 1)
    return _validate(
        {
            "schema": 1,
            "name": name,
            "description": " ".join(foreign.description.split()),
            "source": f"{foreign.format} recipe of {model}",
            "model": {
                "path": model if model.startswith("/") else model.rstrip("/").rpartition("/")[2],
                "repo": model if REPO.fullmatch(model) else "",
                "revision": foreign.revision,
                "served_name": served_names[0] if served_names else model,
                "aliases": tuple(filter(None, served_names[1:])),
            },
            "image": {"ref": foreign.image, "vllm": foreign.vllm, "entrypoint": serve.entrypoint},
            "nodes": nodes,
            "executor": foreign.executor if nodes["min"] > 1 else "mp",
            "caches": foreign.caches,
            "expect": foreign.expect,
            "args": args,
            "env": env,
            "secrets": {**secrets, **foreign.secrets},
            "container": {
                key: value for key, value in foreign.container.items() if not is_alone or (key, value) != _FABRIC
            },
        }
    )


def _note_code(source: Source) -> None:
    """Note the code that the tool would run besides the engine, except what `endpoint` turns into commands."""
    for key, meaning in _NOT_RUN.items():
        for step in source.items(key):
            source.note((key,), f"{key}: {redact(shorten(step))}: not run: {meaning}")
    for key in ("builder", "builder_config"):
        if source.has(key) and source.document.data[key] not in ("eugr", "docker-pull"):
            source.need((key,), f"{key}: not run: {redact(shorten(source.document.data[key]))}: sparkd builds no image")


def _count_nodes(source: Source, foreign: ForeignRecipe, args: Mapping[str, JsonValue]) -> dict[str, int]:
    """A recipe's `nodes`: one for each rank of the flags, unless the recipe requires another number."""
    fewest, most = foreign.nodes
    sizes = (parse_count(args.get(flag), _MOST_RANKS) for flag in rank_flags(args))
    ranks = prod(1 if size is None else size for size in sizes)
    if most is not None and most < fewest:
        raise UnusableRecipeError((), f"requires at least {fewest} and at most {most} nodes")
    if not fewest <= ranks <= (most or ranks):
        source.need((), f"its flags make {ranks} rank(s), and it requires {fewest} to {most or 'any'} nodes")
        return {"min": fewest} if most is None else {"min": fewest, "max": most}
    return {"min": ranks, "max": ranks}


def _validate(written: Mapping[str, object]) -> Recipe:
    """Make the recipe. Raises UnusableRecipeError with the first error."""
    try:
        return Recipe.model_validate(written)
    except ValidationError as error:
        first = error.errors()[0]
        fault = read_keys_fault(first)
        key = fault.at if fault else ".".join(str(step) for step in first["loc"])
        shown = format_key((key,), fault.value if fault else first["input"])
        raise UnusableRecipeError((), f"{shown}: {validator_message(first['msg'])}") from None
