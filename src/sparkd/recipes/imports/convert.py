"""A recipe of another tool becomes one of schema 1, or a reason why it cannot."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

from msgspec import Struct, field
from pydantic import ValidationError

from sparkd import faults, flags
from sparkd.flags import JsonValue
from sparkd.launch import placeholders
from sparkd.launch.parallel import SIZES
from sparkd.recipes.document import Document
from sparkd.recipes.imports import code, eugr, shell, sparkrun
from sparkd.recipes.imports.command import CommandError, Flag, Serve, is_serve, serve
from sparkd.recipes.imports.source import Foreign, Note, Overrides, Source, Unusable
from sparkd.recipes.schema import REPO, Recipe

READERS = {"1": eugr.read, "2": sparkrun.read}
CACHES = {"vllm": "/root/.cache/vllm", "flashinfer": "/root/.cache/flashinfer", "triton": "/root/.triton"}
"""Where the images of both tools keep what they compile."""
COMMAND = ("command",)


class Imported(Struct, frozen=True):
    recipe: Recipe
    format: str
    notes: tuple[Note, ...]
    """What was left out and what is for a person to do, in the order of the file."""


class _Engine(Struct):
    """What the command says, in schema 1's words."""

    served_name: str = ""
    args: dict[str, JsonValue] = field(default_factory=dict)


def convert(document: Document, name: str, given: Overrides) -> Imported:
    """Raises Unusable."""
    source = Source(document)
    if not any(source.has(key) for key in ("recipe_version", "model", "command")):
        raise Unusable((), "is no recipe: it names neither a model nor a command")
    version = source.text("recipe_version") or "2"
    if version not in READERS:
        raise source.fault(("recipe_version",), version, "1 (eugr) and 2 (sparkrun) are known")
    foreign = READERS[version](source, given)
    command = _serve(source, foreign)
    engine = _engine(source, command)
    code.tell(source, foreign.image)
    written = {
        "schema": 1,
        "name": name,
        "description": " ".join(foreign.description.split()),
        "source": f"{foreign.format} recipe of {command.model}",
        "model": {
            "path": _folder(source, command.model),
            "repo": command.model if REPO.fullmatch(command.model) else "",
            "served_name": engine.served_name or command.model,
        },
        "image": {"ref": foreign.image, "entrypoint": command.entrypoint},
        "nodes": _nodes(source, foreign, engine.args),
        "args": engine.args,
        "env": _environment(source, {**foreign.env, **command.env}),
        "container": foreign.container,
        "caches": CACHES,
    }
    notes = tuple(sorted(source.notes, key=lambda note: note.line))
    return Imported(_checked(written), foreign.format, notes)


def _serve(source: Source, foreign: Foreign) -> Serve:
    """The one `vllm serve` among what the command runs."""
    try:
        found = shell.commands(foreign.command)
        served = [command for command in found if is_serve(command)]
        if len(served) != 1:
            raise CommandError(f"runs {len(served)} times `vllm serve`, and once is needed")
        if served[0].unclear:
            raise CommandError(served[0].unclear)
        for command in found:
            if command is served[0]:
                continue
            said = " ".join(command.words)[:120]
            if said.startswith("-"):
                raise CommandError(f"ends before {said}: the line before it lacks its backslash")
            source.note(
                COMMAND, f"command: not run: {said}: build an image in which it is done, and name it under image.ref"
            )
        return serve(served[0])
    except (shell.ShellError, CommandError) as error:
        raise Unusable(COMMAND, f"command: {error}") from None


def _engine(source: Source, command: Serve) -> _Engine:
    engine = _Engine()
    for flag in command.flags:
        stem = flag.name.partition(".")[0].removeprefix("no-")
        said = f"command: --{flag.name}"
        if stem == "config":
            raise Unusable(COMMAND, f"{said}: {flags.OTHER_HOMES[stem]}")
        if flag.name == "served-model-name" and flag.values:
            engine.served_name = flag.values[0]
            if flag.values[1:]:
                source.note(COMMAND, f"{said}: further names left out: {', '.join(flag.values[1:])}")
        elif stem in flags.OWNED:
            value = "".join(f" {value}" for value in flag.values)
            source.note(COMMAND, f"{said}{value}: left out: sparkd sets it from {flags.OWNED[stem]}")
        elif stem in flags.OTHER_HOMES:
            source.note(COMMAND, f"{said}: left out: {flags.OTHER_HOMES[stem]}")
        else:
            _take(source, engine.args, flag, said)
    return engine


def _take(source: Source, args: dict[str, JsonValue], flag: Flag, said: str) -> None:
    named = next((value for value in flag.values if placeholders.named(value)), "")
    if named:
        raise Unusable(COMMAND, f"{said} {named[:60]}: sparkd would put in a value of its own")
    is_off = flag.name.startswith("no-") and not flag.values
    name = flag.name.removeprefix("no-") if is_off else flag.name
    if args.pop(name, None) is not None:
        source.note(COMMAND, f"{said}: is given twice: the last one counts")
    try:
        args.update(flags.flags({name: _value(flag, is_off)}))
    except ValueError as error:
        raise Unusable(COMMAND, f"command: {error}") from None


def _value(flag: Flag, is_off: bool) -> JsonValue:
    if not flag.values:
        return not is_off
    return flag.values[0] if len(flag.values) == 1 else list(flag.values)


def _folder(source: Source, model: str) -> str:
    if model.startswith("/"):
        return model
    folder = model.rstrip("/").rpartition("/")[2]
    source.note(COMMAND, f"model {model}: it must lie in {folder} below engine.models_dir: sparkd model pull")
    return folder


def _nodes(source: Source, foreign: Foreign, args: Mapping[str, JsonValue]) -> dict[str, int]:
    """One rank a node: as many nodes as the flags ask for, where the recipe says nothing against it."""
    fewest, most = foreign.nodes
    ranks = prod(_size(args.get(flag)) for flag in SIZES)
    if most is not None and most < fewest:
        raise Unusable((), f"asks for at least {fewest} and at most {most} nodes")
    if not fewest <= ranks <= (most or ranks):
        source.note((), f"its flags make {ranks} rank(s), and it asks for {fewest} to {most or 'any'} nodes")
        return {"min": fewest} if most is None else {"min": fewest, "max": most}
    return {"min": ranks, "max": ranks}


def _size(value: JsonValue) -> int:
    return int(value) if isinstance(value, str) and value.isdecimal() and value.isascii() and len(value) < 5 else 1


def _environment(source: Source, env: Mapping[str, str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for name, text in env.items():
        try:
            flags.variables({name: text})
        except ValueError as error:
            source.note(("env", name), f"env.{name}: left out: {error}")
            continue
        if placeholders.named(text):
            raise Unusable(("env", name), f"env.{name}: {text[:60]}: sparkd would put in a value of its own")
        found[name] = text
    return found


def _checked(written: Mapping[str, object]) -> Recipe:
    try:
        return Recipe.model_validate(written)
    except ValidationError as error:
        first = error.errors()[0]
        at = first.get("ctx", {}).get("at")
        key = tuple(str(at).split(".")) if at else tuple(str(step) for step in first["loc"])
        found = first.get("ctx", {}).get("found", first["input"])
        raise Unusable((), f"{faults.said(key, found)}: {faults.needed(first['msg'])}") from None
