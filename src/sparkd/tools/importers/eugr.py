"""Reads recipes of eugr's spark-vllm-docker by the rules of its run-recipe.py.

They are recognised by their content, since sparkrun writes `recipe_version: "1"`, too, and runs any version.
"""

import re
from collections.abc import Mapping
from contextlib import suppress

from sparkd.tools.importers.inner_shell import commands_in_container
from sparkd.tools.importers.marks import unknown
from sparkd.tools.importers.options import is_secret, redact
from sparkd.tools.importers.source import ForeignRecipe, Overrides, Source, UnusableRecipeError
from sparkd.tools.importers.sparkrun import TABLES, note_unknown_keys
from sparkd.tools.importers.templates import Values, format_template
from sparkd.tools.importers.variables import CommandError

_WHOLE_NUMBERS = ("port", "tensor_parallel", "max_model_len")
"""Options of the tool that are whole numbers."""
_BACKEND = re.compile(r"--distributed-executor-backend(?:=|\s+)\S+")
_NOTHING = re.compile(r"[\s\\]*")


def _is_eugr_recipe(source: Source, overrides: Overrides) -> bool:
    """Whether the recipe is for eugr's tool, and not for sparkrun.

    No key is sparkrun's alone; and either eugr's tool can format the command, or the recipe has no model, which
    sparkrun needs.
    """
    if source.text("recipe_version") != "1" or not all(source.has(key) for key in ("name", "container", "command")):
        return False
    if not source.document.data.keys().isdisjoint((*TABLES.own_keys, *TABLES.refused)):
        return False
    values: Mapping[str, object] = overrides  # kept as text where one is no number, such as sparkrun's 32k
    with suppress(UnusableRecipeError):
        values = _read_options(overrides)
    try:
        format_template(source.text("command"), Values({**source.mapping("defaults"), **values}))
    except CommandError:
        return not source.has("model")
    return True


def read_eugr(source: Source, overrides: Overrides) -> ForeignRecipe | None:
    """Read a recipe; None for one of another tool. Raises UnusableRecipeError, or CommandError for the command."""
    if not _is_eugr_recipe(source, overrides):
        return None
    values = Values({**_read_defaults(source), **_read_options(overrides)})
    command = format_template(source.needed_text("command"), values)
    values.check_overrides(overrides, command)
    note_unknown_keys(source)
    return ForeignRecipe(
        format="eugr v1",
        description=source.text("description") or source.text("name"),
        image=source.needed_text("container").strip(),
        command=_make_launched_command(command),
        env=_read_environment(source),
        container={"privileged": True, "ipc": "host"},
        nodes=(2 if source.has("cluster_only") else 1, 1 if source.has("solo_only") else None),
    )


def _make_launched_command(command: str) -> str:
    """The command as the tool launches it: without the executor's flag, and without lines that have no word."""
    lines = _BACKEND.sub("", command.rstrip().rstrip("\\")).split("\n")
    return "\n".join(line for line in lines if not _NOTHING.fullmatch(line))


def _read_defaults(source: Source) -> Mapping[str, object]:
    """The recipe's defaults. For one node alone `tensor_parallel` is 1."""
    defaults = source.mapping("defaults")
    if not source.has("solo_only"):
        return defaults
    if defaults.get("tensor_parallel", 1) != 1:
        key = ("defaults", "tensor_parallel")
        source.note(key, "defaults.tensor_parallel: 1 is taken, as its tool does on one node")
    return {**defaults, "tensor_parallel": 1}


def _read_options(overrides: Overrides) -> dict[str, object]:
    """The values as the tool's option parser reads them."""
    values: dict[str, object] = {}
    for name, text in overrides.items():
        try:
            parse = int if name in _WHOLE_NUMBERS else float if name == "gpu_memory_utilization" else str
            values[name] = parse(text)
        except ValueError:
            raise UnusableRecipeError(("defaults", name), f"-o {name}={text}: must be a number") from None
    return values


def _read_environment(source: Source) -> Mapping[str, str]:
    """Variables with the values that bash gives them in the tool's `export NAME="value"`."""
    variables: dict[str, str] = {}
    for name, value in source.mapping("env").items():
        try:
            commands = commands_in_container(f'export {name}="{value}"\nenv', {}, {})
            if len(commands) != 1 or commands[0].env.keys() != {name}:
                raise CommandError("it is more than one value to bash")
            if (missing := unknown(commands[0].env[name])) and not is_secret(name, missing):
                raise CommandError(f"what {redact(missing)} stands for is not known: write its value")
            variables |= commands[0].env
        except CommandError as error:
            source.note(("env", name), f"env.{name}: left out: {error}")
    return variables
