"""Reads recipes of eugr's spark-vllm-docker, version 1, by the rules of its run-recipe.py."""

from __future__ import annotations

from collections.abc import Mapping

from sparkd.recipes.importers.command import CommandError, split_commands
from sparkd.recipes.importers.source import (
    Foreign,
    Overrides,
    Source,
    TemplateError,
    Unusable,
    Values,
    format_template,
    whole_number,
)

FORMAT = "eugr v1"
_KNOWN = (
    "name", "recipe_version", "container", "command", "description", "model", "mods", "defaults", "env", "build_args",
    "cluster_only", "solo_only",
)  # fmt: skip
_WHOLE = ("port", "tensor_parallel", "max_model_len")


def read_eugr(source: Source, overrides: Overrides) -> Foreign:
    """Raises Unusable."""
    source.needed_text("name")
    image = source.needed_text("container")
    template = source.needed_text("command")
    values = Values({**_defaults(source), **{name: _override(name, text) for name, text in overrides.items()}})
    try:
        command = format_template(template, values)
    except TemplateError as error:
        raise Unusable(("command",), f"command: {error}") from None
    values.check_overrides(overrides)
    for key in source.document.data:
        if key not in _KNOWN:
            source.note((key,), f"{key}: left out: {FORMAT} knows no such key")
    return Foreign(
        format=FORMAT,
        description=source.text("description") or source.text("name"),
        image=image.strip(),
        command=command.rstrip().rstrip("\\"),
        env=_environment(source),
        # The options of its launch-cluster.sh.
        container={"privileged": True, "ipc": "host"},
        nodes=(2 if source.has("cluster_only") else 1, 1 if source.has("solo_only") else None),
    )


def _defaults(source: Source) -> Mapping[str, object]:
    defaults = source.mapping("defaults")
    if not source.has("solo_only"):
        return defaults
    if defaults.get("tensor_parallel", 1) != 1:
        key = ("defaults", "tensor_parallel")
        source.note(key, "defaults.tensor_parallel: 1 is taken, as its tool does on one node")
    return {**defaults, "tensor_parallel": 1}


def _override(name: str, text: str) -> object:
    """The value as the tool's option parser reads it."""
    try:
        if name in _WHOLE:
            return whole_number(text)
        return float(text) if name == "gpu_memory_utilization" else text
    except ValueError:
        raise Unusable(("defaults", name), f"-o {name}={text}: must be a number") from None


def _environment(source: Source) -> Mapping[str, str]:
    """Variables as bash evaluates the tool's `export NAME="value"`."""
    found: dict[str, str] = {}
    for name, value in source.mapping("env").items():
        try:
            read = split_commands(f'export {name}="{value}"')
            if len(read) != 1 or read[0].unclear or len(read[0].words) != 2:
                raise CommandError((read and read[0].unclear) or "it is more than one value to bash")
            found[name] = read[0].words[1].partition("=")[2]
        except CommandError as error:
            source.note(("env", name), f"env.{name}: left out: {error}")
    return found
