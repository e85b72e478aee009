"""Predicates on the fields in the JSON of flags. A fork may have more fields and choices than the table of flags."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from itertools import islice

from sparkd.base.lib.text import did_you_mean, sanitize
from sparkd.base.vllm.args import JsonValue
from sparkd.base.vllm.flag import Field, FlagTable, misprint_of
from sparkd.base.vllm.lint.predicates import Launch, Matches
from sparkd.base.vllm.releases import add_history, load_releases

NUMBERS = frozenset(("null", "bool", "int", "float"))
MOST_FIELDS = 200
"""Limit for one flag; vLLM's own have 50 at most."""


def wrong(launch: Launch, *, sure: bool) -> Matches:
    """Wrong fields. `sure`: those that no build takes, else those that a fork may take."""
    for flag, name, value in _list_fields(launch):
        at, shown, known = f"args.{flag}.{name}", sanitize(name, 60), launch.vllm.fields_by_name[flag]
        if name not in known:
            has = partial(_has_key, flag, name)
            elsewhere = any(map(has, load_releases()))
            right = "" if elsewhere else misprint_of(name, known)
            if sure is bool(right):
                meant = f": {right} is" if right else "" if elsewhere else did_you_mean(shown, known)
                yield at, add_history(f"--{flag}: {shown} is no key of {launch.vllm.vllm}{meant}", has)
        elif sure is _needs_number(known[name], value) and (reason := known[name].wrong_value(value)):
            yield at, f"--{flag}: {name} {reason}"


def _has_key(flag: str, name: str, table: FlagTable) -> bool:
    return name in table.fields_by_name.get(flag, {})


def _needs_number(field: Field, value: JsonValue) -> bool:
    """Whether no build takes other values than numbers: a later one may give names to what is a switch."""
    takes = set(field.takes.split())
    return "int" in takes and takes <= NUMBERS and not field.choices and value is not None


def _list_fields(launch: Launch) -> Iterator[tuple[str, str, JsonValue]]:
    """Flag, dotted key and value, of each flag with a table of fields."""
    given = {name.partition(".")[0] for name in launch.flags}
    for flag, known in launch.vllm.fields_by_name.items():
        if flag in given and flag not in launch.extra:
            entries = _flatten(launch.table(flag), known, dashes=flag == "speculative-config")
            yield from ((flag, name, value) for name, value in islice(entries, MOST_FIELDS))


def _flatten(
    table: Mapping[str, JsonValue], known: Mapping[str, Field], *, dashes: bool, prefix: str = ""
) -> Iterator[tuple[str, JsonValue]]:
    for key, value in table.items():
        # vLLM itself changes dashes in the keys of this one flag.
        name = prefix + (key.replace("-", "_") if dashes else key)
        if isinstance(value, dict) and _has_fields(name, known):
            yield from _flatten(value, known, dashes=False, prefix=f"{name}.")
        elif (outer := name.rpartition(".")[0]) not in known or _has_fields(outer, known):
            yield name, value  # others lie in an object of which vLLM does not know the keys


def _has_fields(name: str, known: Mapping[str, Field]) -> bool:
    return any(field.startswith(f"{name}.") for field in known)
