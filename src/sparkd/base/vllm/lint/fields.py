"""Predicates on the fields in the JSON of flags, by the table of flags."""

from collections.abc import Iterator, Mapping
from itertools import islice
from operator import methodcaller

from sparkd.base.lib.text import did_you_mean, sanitize
from sparkd.base.vllm.args import JsonValue
from sparkd.base.vllm.flag import Field, misprint_of
from sparkd.base.vllm.lint.launch import Launch, Matches
from sparkd.base.vllm.releases import add_history, load_releases


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


MOST_FIELDS = 200
"""Fields of one flag that are judged; vLLM's own have 50 at most."""


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
