"""Finds the engine of each file, one for each node, and makes one recipe of all: they are ranks of one engine."""

import json
import re
import shlex
from collections.abc import Iterator

from msgspec.structs import replace

from sparkd.base.lib.errors import ConfigError
from sparkd.base.recipes.yaml import Document
from sparkd.base.vllm.container_paths import FILE_FLAGS, is_below
from sparkd.base.vllm.flag import parse_json
from sparkd.tools.importers.command import VLLM_SERVE, Serve
from sparkd.tools.importers.docker_line import may_be_docker
from sparkd.tools.importers.forms import CONTAINER, Form
from sparkd.tools.importers.inner_shell import find_script
from sparkd.tools.importers.launch import Engine, find_engine
from sparkd.tools.importers.marks import explain_missing, shown, unknown
from sparkd.tools.importers.options import Launch, LineError, make_fault, redact
from sparkd.tools.importers.source import ForeignRecipe, Source
from sparkd.tools.importers.variables import SET_BY_IMAGE

_PATH_FLAGS = (
    *FILE_FLAGS,
    "allowed-local-media-path",
    "generation-config",
    "hf-config-path",
    "lora-modules",
    "speculative-config",
    "tokenizer",
)


def combine(forms: list[Form], image: str) -> tuple[Source, ForeignRecipe, Serve]:
    """Combine forms that start one engine; each starts it on one node. Raises ConfigError with file and line.

    `image`: the one to use instead of what the forms name; empty for theirs.
    """
    # Launches without an image may start no engine; what they leave out is noted all the same.
    launches_without_image = [(form.path, launch) for form in forms for launch in form.launches if not launch.image]
    other_notes = [
        replace(note, text=shown(note.text), file=path)
        for path, launch in launches_without_image
        for note in launch.notes
    ]
    engines = _find_engines(forms, image)
    if not engines:
        raise _explain_no_engine(forms)
    for form in forms:
        if len(launches := [engine.launch for path, engine in engines if path == form.path]) > 1:
            named = f"services {', '.join(launch.service for launch in launches)}: name one by --service"
            lines = ", ".join(str(launch.line) for launch in launches)
            starters = named if launches[0].service else f"commands, in lines {lines}: keep one of them"
            raise make_fault(form.path, launches[0].line, f"vLLM is started by {len(launches)} {starters}")
    try:
        engine = _merge(engines)
    except LineError as error:
        raise make_fault(error.file, error.line, str(error)) from None
    launch, kind = engine.launch, forms[0].kind
    known_texts = {note.text for note in launch.notes}
    launch.notes += [note for note in dict.fromkeys(other_notes) if note.text not in known_texts]
    is_container = kind == CONTAINER
    source = Source(
        Document({}, {(): launch.line}),
        notes=launch.notes,
        file=engines[0][0],
        container=shlex.quote(forms[0].path) if is_container else "",
        has_local_image=is_container and not image,
    )
    foreign = ForeignRecipe(
        format=kind,
        description="",
        image=launch.image,
        command=shlex.join(engine.words),
        env=engine.env,
        container=engine.container,
        # Several files are the ranks of as many nodes; one may be started on any number.
        nodes=(len(engines), len(engines) if engines[1:] else None),
        secrets=engine.secrets,
    )
    return source, foreign, engine.serve


def _find_engines(forms: list[Form], image: str) -> list[tuple[str, Engine]]:
    """Path and engine of each launch that starts one.

    An engine without an image, as of `docker exec`, runs in the only container that may be its own, and starts none.
    """
    launches = [(form, launch) for form in forms for launch in form.launches]
    engines, idle_containers = list[tuple[str, Engine]](), list[tuple[str, Launch]]()
    # Containers come first, since the other launches may run in one.
    for form, launch in sorted(launches, key=lambda pair: not pair[1].image):
        is_container, own_containers = bool(launch.image), _list_own(launch, idle_containers)
        if not is_container and len(own_containers) == 1:
            _put_into(launch, *own_containers[0])
        elif not is_container:
            for variable in [name for name in SET_BY_IMAGE if name in launch.env]:
                launch.note(launch.env.pop(variable), f"{variable}: left out: the image has its own")
        try:
            engine = find_engine(launch, form.overrides)
        except LineError as error:
            raise make_fault(form.path, error.line, str(error)) from None
        if engine is None:
            idle_containers += [(form.path, launch)] if is_container else []
            continue
        if not launch.image:
            engine.serve = replace(engine.serve, entrypoint=VLLM_SERVE)  # its path is the node's
            _note_paths(launch, engine.serve)
        launch.image = image or launch.image
        if not launch.image:
            raise make_fault(form.path, launch.line, "names no image to run it in: --image REF names one")
        engines.append((form.path, engine))
    return engines


def _note_paths(launch: Launch, serve: Serve) -> None:
    """Note as missing what flags name on the node, where an engine without `docker exec` has run."""
    for flag in (flag for flag in serve.flags if flag.name.partition(".")[0] in _PATH_FLAGS and not launch.options):
        values = (value for value in flag.values if not re.search("{[{%]", value))  # no template in the command
        for path in re.split(r"[\s'\"=,]+", " ".join(values)):
            if path.startswith("/") and path != "/" and not is_below(path, serve.model):
                text = f"--{flag.name}: {path[:200]} is the node's: mount it under container.volumes"
                launch.note(launch.line, text, is_missing=True)


def _find_name(launch: Launch) -> str:
    """The name of its container; empty where that is not known."""
    names = [option.value for option in launch.options if option.name == "name" and not unknown(option.value)]
    return "".join(names[:1])


def _list_own(launch: Launch, containers: list[tuple[str, Launch]]) -> list[tuple[str, Launch]]:
    """The containers that a launch may run in, by their names."""
    name = _find_name(launch)
    return [container for container in containers if name in ("", _find_name(container[1]) or name)]


def _put_into(launch: Launch, file: str, container: Launch) -> None:
    """Give a launch the image, options and variables of the container that it runs in. `file`: the container's."""
    launch.image = container.image
    launch.folder = container.folder
    # The options of `docker exec` come last, and its name counts no more.
    launch.options = [*(option._replace(file=file) for option in container.options), *launch.options]
    launch.env = {**{name: option._replace(file=file) for name, option in container.env.items()}, **launch.env}
    launch.notes = [*(replace(note, file=file) for note in container.notes), *launch.notes]


def _explain_no_engine(forms: list[Form]) -> ConfigError:
    """The error for forms without an engine: an unknown image or program, a script that would start it, or neither."""
    reason = "starts no vLLM server by itself"
    launches = [(form.path, launch) for form in forms for launch in form.launches]
    for path, launch in launches:
        if unknown(launch.image):
            return make_fault(path, launch.line, f"image: {explain_missing(launch.image)}")
        if not launch.image and may_be_docker(launch.words):
            return make_fault(path, launch.line, explain_missing(next(filter(unknown, launch.words))))
    for path, launch in launches:
        if script := shown(find_script(launch.words))[:200]:
            hint = "import that file by its path on the node"
            return make_fault(path, launch.line, f"{reason}, but runs {script}: {hint}")
    hint = "import the file with `vllm serve` or vLLM's image, or --container NAME"
    return make_fault(forms[0].path, 1, f"{reason}: {hint}")


def _merge(engines: list[tuple[str, Engine]]) -> Engine:
    """Give the first rank's engine the notes and secrets of the others. Each comes with the path of its file.

    Raises LineError where ranks differ in a setting that all need the same.
    """
    file, first = engines[0]
    notes = [replace(note, file=note.file or file) for note in first.launch.notes]
    for other_file, other in engines[1:]:
        for setting, value, other_value in find_differences(first, other):
            both = f"{setting}: {value} in {file}, {other_value} in {other_file}"
            raise LineError(other.launch.line, f"{both}: ranks of one engine need the same", other_file)
        first.secrets |= other.secrets
        known_notes = {(note.text, note.is_missing) for note in notes}
        new_notes = (note for note in other.launch.notes if (note.text, note.is_missing) not in known_notes)
        notes += [replace(note, file=note.file or other_file) for note in new_notes]
    first.launch.notes = notes
    return first


def find_differences(first: Engine, other: Engine) -> Iterator[tuple[str, str, str]]:
    """Name of each setting in which ranks of one engine differ, and both values. No secret is in them."""
    settings, other_settings = _list_settings(first), _list_settings(other)
    for key in settings | other_settings:
        value, other_value = settings.get(key, "not given"), other_settings.get(key, "not given")
        if value != other_value:
            yield "".join(key), redact(str(value))[:80], redact(str(other_value))[:80]


def _list_settings(engine: Engine) -> dict[tuple[str, str], object]:
    """The settings that must be equal on all ranks, by kind and name."""
    serve = engine.serve
    return {
        ("image", ""): engine.launch.image,
        ("entrypoint", ""): shlex.join(serve.entrypoint),
        ("model", ""): serve.model,
        **{("--", flag.name): " ".join(map(_normalize_json, flag.values)) or "given" for flag in serve.flags},
        **{("", name): value for name, value in engine.env.items()},
        **{("container.", name): value for name, value in engine.container.items()},
    }


def _normalize_json(text: str) -> str:
    """JSON in one notation; any other text as it is."""
    value = parse_json(text) if text.startswith(("{", "[")) else None
    return text if value is None else json.dumps(value, sort_keys=True)
