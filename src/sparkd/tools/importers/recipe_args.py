"""The flags of a foreign recipe's command, as `args` of a recipe of schema 1."""

from sparkd.base.recipes.schema import has_placeholder
from sparkd.base.vllm.args import OTHER_HOMES, OWNED, JsonValue, parse_flags
from sparkd.tools.importers.command import Flag, Serve
from sparkd.tools.importers.source import COMMAND, Source, UnusableRecipeError


def convert_flags(source: Source, serve: Serve) -> tuple[str, dict[str, JsonValue]]:
    """The served name (empty if no flag gives one) and the recipe's `args`. Raises UnusableRecipeError."""
    served_name = ""
    args: dict[str, JsonValue] = {}
    for flag in serve.flags:
        base_name = flag.name.partition(".")[0].removeprefix("no-")
        where = f"command: --{flag.name}"
        if base_name == "config":
            raise UnusableRecipeError(COMMAND, f"{where}: {OTHER_HOMES[base_name]}")
        if flag.name == "served-model-name" and flag.values:
            served_name = flag.values[0]
            if flag.values[1:]:
                source.note(COMMAND, f"{where}: further names left out: {', '.join(flag.values[1:])}")
        elif base_name in OWNED:
            continue  # sparkd sets it, from the recipe's executor or cluster.nodes
        elif base_name in OTHER_HOMES:
            source.note(COMMAND, f"{where}: left out: {OTHER_HOMES[base_name]}")
        else:
            _convert_flag(source, args, flag, where)
    return served_name, args


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
