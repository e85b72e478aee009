"""Predicates on names and values of flags, and on the fields in their JSON, by the table of flags.

An image may contain a fork with more flags and choices, so only values that no build of vLLM can read, and names one
typing error away from a flag, are certain to fail.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from operator import methodcaller

from sparkd.base.lib.text import did_you_mean, sanitize
from sparkd.base.vllm.args import JsonValue
from sparkd.base.vllm.command import ParsedFlag
from sparkd.base.vllm.flag import Field, Flag, FlagTable, misprint_of
from sparkd.base.vllm.lint.launch import NOTHING, Launch, Matches, about
from sparkd.base.vllm.lint.predicates import JSON_FLAGS, JSON_OR_TEXT, RENAMED
from sparkd.base.vllm.releases import add_history, load_releases

MOST_FLAGS = 400
"""Flags of a command that are judged. An unknown name takes 5 ms. vLLM has 316 flags."""
MOST_FIELDS = 200
"""Fields of one flag that are judged; vLLM's own have 50 at most."""


def wrong_value(launch: Launch) -> Matches:
    return _match_known(launch, _explain_unreadable)


def not_a_choice(launch: Launch) -> Matches:
    yield from _match_known(launch, _explain_unlisted)
    # The flag's parser takes any text; the class behind it knows the names.
    flag, value = "attention-backend", launch.flags.get("attention-backend") or "auto"
    known = launch.vllm.fields_by_name.get("attention-config", {}).get("backend")
    wrong = known.wrong_value(value.upper()) if known and value.lower() not in ("auto", "none") else ""
    if wrong and flag not in launch.extra:
        yield about(flag, wrong)


def _match_known(launch: Launch, explain: Callable[[ParsedFlag, Flag], str]) -> Matches:
    for argument, flag_name in _list_judged(launch):
        if (flag := launch.vllm.by_name.get(flag_name)) and (reason := explain(argument, flag)):
            yield about(argument.name, reason)


def likely_typo(launch: Launch) -> Matches:
    for argument, flag_name in _list_judged(launch):
        if correct_name := _find_typo(flag_name, launch.vllm):
            yield about(argument.name, f"is no flag of {launch.vllm.vllm}: --{correct_name} is")


def unknown(launch: Launch) -> Matches:
    for argument, flag_name in _list_judged(launch):
        if flag_name in launch.vllm.by_name or _find_typo(flag_name, launch.vllm):
            continue
        full_name = _complete_name(flag_name, launch.vllm)
        flag = launch.vllm.by_name.get(full_name)
        if flag is None:
            reason = f"is no flag of {launch.vllm.vllm}{did_you_mean(flag_name, launch.vllm.by_name)}"
            yield about(argument.name, add_history(reason, methodcaller("has", flag_name)))
        elif reason := _explain_unreadable(argument, flag) or _explain_unlisted(argument, flag):
            yield about(argument.name, f"is read as --{full_name}, and {reason}")


def _list_judged(launch: Launch) -> Iterator[tuple[ParsedFlag, str]]:
    """Each flag with its name before a dot, except flags covered by the recipe or another rule."""
    for argument in launch.given[:MOST_FLAGS]:
        flag_name = argument.name.partition(".")[0]
        is_renamed = flag_name in RENAMED and flag_name not in launch.vllm.by_name
        if not is_renamed and not {flag_name, flag_name.removeprefix("no-")} & set(launch.extra):
            yield argument, flag_name


def _complete_name(name: str, table: FlagTable) -> str:
    """The flag for which vLLM takes an abbreviation: the only one with this prefix; else empty."""
    candidates = [flag for flag in table.by_name if flag.startswith(name)]
    return candidates[0] if len(candidates) == 1 else ""


def _explain_unreadable(argument: ParsedFlag, flag: Flag) -> str:
    """Why vLLM can't read the flag, apart from its choices."""
    return _explain_arity(argument, flag) or next(
        filter(None, (_explain_type(flag, text) for text in _list_texts(argument))), ""
    )


def _explain_unlisted(argument: ParsedFlag, flag: Flag) -> str:
    """Why a readable value is not a choice of the flag, and in which releases it is; else empty."""
    if "." in argument.name or _explain_unreadable(argument, flag):
        return ""
    text, reason = next(((text, why) for text in _list_texts(argument) if (why := flag.not_a_choice(text))), ("", ""))
    return reason and add_history(reason, lambda table: _is_listed(table.by_name.get(flag.name), text))


def _is_listed(flag: Flag | None, text: str) -> bool:
    return flag is not None and bool(flag.choices) and not flag.not_a_choice(text)


def _explain_arity(argument: ParsedFlag, flag: Flag) -> str:
    count = len(argument.values)
    if "." not in argument.name:
        return flag.wrong_arity(count, argument.joined)
    # vLLM takes exactly the next word.
    return "" if count == 1 else f"takes one value, and {count or 'none'} is given"


def _list_texts(argument: ParsedFlag) -> Iterator[str]:
    """The values as the flag gets them: a dotted field becomes an object."""
    for value in argument.values:
        if value is not None:
            yield json.dumps({"field": value}) if "." in argument.name else value


def _explain_type(flag: Flag, text: str) -> str:
    by_json_rule = flag.name in (*JSON_FLAGS, *JSON_OR_TEXT) and text not in NOTHING  # that rule reports the position
    return "" if by_json_rule else flag.wrong_type(text)


def _find_typo(name: str, table: FlagTable) -> str:
    """The flag whose name differs by one letter: wrong, missing, extra, or swapped with its neighbour.

    Empty where there is none, and where some release has the name.
    """
    correct_name = "" if name in table.by_name or _complete_name(name, table) else misprint_of(name, table.by_name)
    return "" if correct_name and any(release.has(name) for release in load_releases()) else correct_name


def wrong_fields(launch: Launch, *, sure: bool) -> Matches:
    """Keys and values of flags' JSON that vLLM does not take.

    `sure`: those that no build takes; else those that a fork may take, since it may have more fields and choices.
    """
    for flag, name, value in _list_fields(launch):
        key, known = f"args.{flag}.{name}", launch.vllm.fields_by_name[flag]
        if name not in known:
            has = methodcaller("has", f"{flag}.{name}")
            is_elsewhere = any(map(has, load_releases()))
            correction = "" if is_elsewhere else misprint_of(name, known)
            if sure is bool(correction):
                shown = sanitize(name, 60)
                suggestion = "" if is_elsewhere else f": {correction} is" if correction else did_you_mean(shown, known)
                yield key, add_history(f"--{flag}: {shown} is no key of {launch.vllm.vllm}{suggestion}", has)
        elif sure is _needs_number(known[name], value) and (reason := known[name].wrong_value(value)):
            yield key, f"--{flag}: {name} {reason}"


def _needs_number(field: Field, value: JsonValue) -> bool:
    """Whether no build takes anything but numbers and null. A switch is none: a later build may give it names."""
    takes = set(field.takes.split())
    return "int" in takes and takes <= {"null", "bool", "int", "float"} and not field.choices and value is not None


def _list_fields(launch: Launch) -> Iterator[tuple[str, str, JsonValue]]:
    """Flag, dotted key and value of each entry in the JSON of flags whose fields are known."""
    names = {name.partition(".")[0] for name in launch.flags}
    for flag, fields in launch.vllm.fields_by_name.items():
        if flag in names and flag not in launch.extra:
            entries = _flatten_table(launch.table(flag), fields, dashes=flag == "speculative-config")
            yield from ((flag, name, value) for name, value in islice(entries, MOST_FIELDS))


def _flatten_table(
    table: Mapping[str, JsonValue], fields: Mapping[str, Field], *, dashes: bool, prefix: str = ""
) -> Iterator[tuple[str, JsonValue]]:
    """Dotted key and value. An object whose keys vLLM knows is taken apart."""
    for key, value in table.items():
        # vLLM itself changes dashes in the keys of this one flag.
        name = prefix + (key.replace("-", "_") if dashes else key)
        if isinstance(value, dict) and _has_fields(name, fields):
            yield from _flatten_table(value, fields, dashes=False, prefix=f"{name}.")
        elif (outer := name.rpartition(".")[0]) not in fields or _has_fields(outer, fields):
            yield name, value  # any other name lies in an object of which vLLM does not know the keys


def _has_fields(name: str, known: Mapping[str, Field]) -> bool:
    return any(field.startswith(f"{name}.") for field in known)
