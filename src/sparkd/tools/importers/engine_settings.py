"""Flags and variables of a foreign recipe, as `args`, `env` and `secrets` of a recipe of schema 1."""

from collections.abc import Mapping

from sparkd.base.recipes.schema import has_placeholder
from sparkd.base.vllm.args import (
    OTHER_HOMES,
    OWNED,
    JsonValue,
    parse_flags,
    parse_secret_files,
    parse_variables,
)
from sparkd.base.vllm.lint.environment import has_node_address
from sparkd.tools.importers.command import Flag, Serve
from sparkd.tools.importers.options import OF_RANK, SWITCHES, is_secret, secret_file
from sparkd.tools.importers.source import COMMAND, Source, UnusableRecipeError


def convert_flags(source: Source, serve: Serve) -> tuple[tuple[str, ...], dict[str, JsonValue]]:
    """The served names (none if no flag gives one) and the recipe's `args`. Raises UnusableRecipeError."""
    served_names: tuple[str, ...] = ()
    args: dict[str, JsonValue] = {}
    for flag in serve.flags:
        base_name = flag.name.partition(".")[0].removeprefix("no-")
        where = f"command: --{flag.name}"
        if base_name == "config":
            raise UnusableRecipeError(COMMAND, f"{where}: {OTHER_HOMES[base_name]}")
        if flag.name == "served-model-name" and flag.values:
            served_names = flag.values
        elif base_name in OWNED:
            continue  # sparkd sets it, from the recipe's executor or cluster.nodes
        elif base_name in OTHER_HOMES:
            source.note(COMMAND, f"{where}: left out: {OTHER_HOMES[base_name]}")
        else:
            _convert_flag(source, args, flag, where)
    return served_names, args


def _convert_flag(source: Source, args: dict[str, JsonValue], flag: Flag, where: str) -> None:
    for value in flag.values:
        if has_placeholder(value):
            raise UnusableRecipeError(COMMAND, f"{where} {value[:60]}: sparkd would put in a value of its own")
    is_off = flag.name.startswith("no-") and not flag.values
    name = flag.name.removeprefix("no-") if is_off else flag.name
    if args.pop(name, None) is not None:
        source.note(COMMAND, f"{where}: is given twice: the last one counts")
    single_value = flag.values[0] if flag.values else not is_off
    try:
        args.update(parse_flags({name: list(flag.values) if flag.values[1:] else single_value}))
    except ValueError as error:
        raise UnusableRecipeError(COMMAND, f"command: {error}") from None


def split_environment(source: Source, env: Mapping[str, str], *, many: bool) -> tuple[dict[str, str], dict[str, str]]:
    """Variables, and the files of those variables that are secrets. Raises UnusableRecipeError.

    `many`: several nodes run the recipe, so that what is of one node alone is left out.
    """
    kept: dict[str, str] = {}
    secrets: dict[str, str] = {}
    for name, text in env.items():
        if many and has_node_address(name, text):
            source.note(("env", name), f"env.{name}: left out: {OF_RANK}")
            continue
        try:
            if is_secret(name, text) and text.lower() not in SWITCHES:
                secrets |= parse_secret_files({name: secret_file(name)})
                source.note(("env", name), f"env.{name}: its value is not taken: put it into {secrets[name]}")
                continue
            parse_variables({name: text})
        except ValueError as error:
            source.note(("env", name), f"env.{name}: left out: {error}")
            continue
        if has_placeholder(text):
            raise UnusableRecipeError(("env", name), f"env.{name}: {text[:60]}: sparkd would put in a value of its own")
        kept[name] = text
    return kept, secrets
