"""Reads recipes of NVIDIA's catalogue (local-ai-inference-recipes, recipe.yaml of schema 3 and 4), for DGX Sparks."""

import re
from collections.abc import Mapping

from sparkd.tools.importers.launch import read_inner_engine
from sparkd.tools.importers.nvidia_container import (
    convert_options,
    find_caches,
    need_io_uring,
    read_docker_run,
    split_environment,
)
from sparkd.tools.importers.nvidia_measurement import pin_image, pin_model, read_figures, read_measurement
from sparkd.tools.importers.options import Launch, LineError, redact
from sparkd.tools.importers.ranks import find_differences
from sparkd.tools.importers.source import ForeignRecipe, Overrides, Source, as_mapping
from sparkd.tools.importers.templates import Values
from sparkd.tools.importers.variables import CommandError

_RANK_FLAGS = re.compile(r"""(--(?:node-rank|master-addr|master-port)[= ])"?\$\{?\w+\}?"?""")
"""Flags that sparkd sets, with variables of the shell as their values."""
_MOST_NODES = 64
"""The limit in the catalogue's schema."""
_NOTED_KEYS = ("status", "min_vidmem_gb", "security", "limitations", "notes", "validation")
"""Keys for people: their texts become notes."""


def catalogue_name(source: Source) -> str:
    """The recipe's name, from model and hardware, since every file is named recipe.yaml; empty for another tool's."""
    if source.document.data.get("schema_version") not in (3, 4) or not source.has("serve"):
        return ""
    return f"{source.document.data.get('model')}-{source.document.data.get('hardware')}".rpartition("/")[2]


def read_nvidia(source: Source, overrides: Overrides) -> ForeignRecipe | None:
    """Read a recipe; None for one of another tool. Raises UnusableRecipeError, or CommandError for the command."""
    if not catalogue_name(source):
        return None
    if source.text("backend") != "vllm":
        raise source.fault(("backend",), source.text("backend"), "sparkd runs vLLM alone")
    command = str(source.mapping("serve").get("command") or "")
    Values({}).check_overrides(overrides, command)
    command = _RANK_FLAGS.sub(r"\g<1>0", command)
    nodes, measured, launch = _count_nodes(source), read_measurement(source), read_docker_run(source)
    if not re.match(r"dgx-spark(-|\Z)", source.text("hardware")):
        source.need(("hardware",), f"hardware: {source.text('hardware')[:60]}: is no DGX Spark: choose another recipe")
    for key in _NOTED_KEYS:
        for value in source.items(key):
            source.note((key,), f"{key}: {_flatten(value)}"[:400])
    software = as_mapping(measured.get("software"))
    image, release = pin_image(source, launch, software)
    env, secrets = split_environment(source, launch)
    _compare_workers(source, command, env, overrides)
    need_io_uring(source, launch, command)
    return ForeignRecipe(
        format="NVIDIA catalogue",
        description=source.text("title"),
        image=image,
        vllm=release,
        command=command,
        revision=pin_model(source, command, str(software.get("model_revision"))),
        env=env,
        secrets=secrets,
        container=convert_options(source, launch),
        caches=find_caches(launch),
        nodes=(nodes, nodes),
        expect=read_figures(measured),
    )


def _count_nodes(source: Source) -> int:
    nodes = source.mapping("topology").get("node_count") or 1
    if not isinstance(nodes, int) or not 1 <= nodes <= _MOST_NODES:
        raise source.fault(("topology", "node_count"), nodes, "must be a number of nodes")
    return nodes


def _flatten(value: object) -> str:
    """A mapping as text on one line; any other value as text."""
    if not isinstance(value, dict) or not value:
        return str(value)
    return ", ".join(_flatten(part) if isinstance(part, dict) else f"{key} {part}" for key, part in value.items())


def _compare_workers(source: Source, command: str, env: Mapping[str, str], overrides: Overrides) -> None:
    """Note in what the workers' commands differ from the head's, since every rank gets the words of the head's."""
    key = ("serve", "additional_commands")
    commands = source.mapping("serve").get("additional_commands")
    workers = map(as_mapping, commands if isinstance(commands, list) else [])
    worker_commands = [*dict.fromkeys(_RANK_FLAGS.sub(r"\g<1>0", str(worker.get("command"))) for worker in workers)]
    lines: dict[str, bool] = {}
    for worker_command in worker_commands[:_MOST_NODES]:
        try:
            lines |= _compare_worker(command, worker_command, env, overrides)
        except (CommandError, LineError) as error:
            lines[f"not compared: {redact(str(error))}"] = False
    if len(worker_commands) > _MOST_NODES:
        lines[f"{len(worker_commands) - _MOST_NODES} of {len(worker_commands)} are not compared"] = False
    for line, is_missing in lines.items():
        source.note(key, f"{'.'.join(key)}: {line}", is_missing=is_missing)


def _compare_worker(command: str, worker_command: str, env: Mapping[str, str], overrides: Overrides) -> dict[str, bool]:
    """Lines on what a worker's command has else than the head's, and whether each keeps the recipe from an endpoint.

    Raises CommandError, LineError for a command that cannot be read.
    """
    head, worker = (read_inner_engine(Launch(1), text, env, overrides) for text in (command, worker_command))
    notes = [note for note in worker.launch.notes if note not in head.launch.notes]
    left_out = {note.text.partition(": put it into")[0]: note.is_missing for note in notes}
    lines = dict(left_out)
    for setting, value, worker_value in find_differences(head, worker):
        if not any(text.startswith(f"{setting}: left out") for text in left_out):
            lines[f"{setting}: {value} for the head, {worker_value} for the others: every rank gets the head's"] = False
    return lines
