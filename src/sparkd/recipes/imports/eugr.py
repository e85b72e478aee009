"""Recipes of eugr's spark-vllm-docker, version 1, as its run-recipe.py reads them."""

from __future__ import annotations

from collections.abc import Mapping

from sparkd.recipes.imports import overrides, shell
from sparkd.recipes.imports.source import Foreign, Overrides, Source, Unusable
from sparkd.recipes.imports.templates import TemplateError, Values, formatted

FORMAT = "eugr v1"
_KNOWN = (
    "name", "recipe_version", "container", "command", "description", "model", "mods", "defaults", "env", "build_args",
    "cluster_only", "solo_only",
)  # fmt: skip
_WHOLE = ("port", "tensor_parallel", "max_model_len")


def read(source: Source, given: Overrides) -> Foreign:
    """Raises Unusable."""
    source.needed_text("name")
    image = source.needed_text("container")
    template = source.needed_text("command")
    values = Values({**_defaults(source), **{name: _override(name, text) for name, text in given.items()}})
    try:
        command = formatted(template, values)
    except TemplateError as error:
        raise Unusable(("command",), f"command: {error}") from None
    overrides.all_used(given, values)
    for key in source.document.data:
        if key not in _KNOWN:
            source.note((key,), f"{key}: left out: {FORMAT} knows no such key")
    return Foreign(
        format=FORMAT,
        description=source.text("description") or source.text("name"),
        image=image.strip(),
        command=command.rstrip().rstrip("\\"),
        env=_environment(source),
        # As its launch-cluster.sh starts the container.
        container={"privileged": True, "ipc": "host"},
        nodes=(2 if source.has("cluster_only") else 1, 1 if source.has("solo_only") else None),
    )


def _defaults(source: Source) -> Mapping[str, object]:
    said = source.mapping("defaults")
    if not source.has("solo_only"):
        return said
    if said.get("tensor_parallel", 1) != 1:
        source.note(
            ("defaults", "tensor_parallel"), "defaults.tensor_parallel: 1 is taken, as its tool does on one node"
        )
    return {**said, "tensor_parallel": 1}


def _override(name: str, text: str) -> object:
    """As its options would read it: some are numbers."""
    try:
        if name in _WHOLE:
            return overrides.whole(text)
        return float(text) if name == "gpu_memory_utilization" else text
    except ValueError:
        raise Unusable(("defaults", name), f"-o {name}={text}: must be a number") from None


def _environment(source: Source) -> Mapping[str, str]:
    """Variables as bash understands `export NAME="value"`, which is what it is given."""
    found: dict[str, str] = {}
    for name, value in source.mapping("env").items():
        try:
            read = shell.commands(f'export {name}="{value}"')
        except shell.ShellError as error:
            source.note(("env", name), f"env.{name}: left out: {error}")
            continue
        if len(read) == 1 and not read[0].unclear and len(read[0].words) == 2:
            found[name] = read[0].words[1].partition("=")[2]
        else:
            reason = read[0].unclear if read and read[0].unclear else "it is more than one value to bash"
            source.note(("env", name), f"env.{name}: left out: {reason}")
    return found
