"""Program for the engine's image: prints what its parser of `vllm serve` takes, and its variables, as packed JSON.

What a flag makes of a value is tried out, not read from its source. It runs with any build of vLLM: what a build lacks
is left out, so nothing of vLLM is imported at the top. tests/bed runs it, too.
"""

from __future__ import annotations

import argparse
import base64
import contextlib
import enum
import functools
import importlib
import json
import sys
import zlib
from collections.abc import Callable, Iterator
from dataclasses import is_dataclass
from importlib.metadata import version
from typing import Any, Literal, get_args, get_origin

MARK = "sparkd-vllm-parser:"
"""Beginning of each line that is part of the answer."""
ARGS = tuple(f"vllm.entrypoints.{where}.cli_args" for where in ("common", "launchers", "openai"))
"""Modules that have make_arg_parser, by the build of vLLM."""
MANAGERS = (
    ("--reasoning-parser", "ReasoningParserManager", "vllm.reasoning"),
    ("--tool-call-parser", "ToolParserManager", "vllm.tool_parsers", "vllm.entrypoints.openai.tool_parsers"),
)
"""Flags whose values are registered, each with the class that lists them and the modules that may have it."""
LITERALS = (
    ("--kv-cache-dtype", "CacheDType", "vllm.config.cache"),
    ("--load-format", "LoadFormats", "vllm.model_executor.model_loader"),
    ("--quantization", "QuantizationMethods", "vllm.model_executor.layers.quantization"),
)
"""Flags whose values a Literal lists, each with its name and module."""
PROBES = ("abc", "1", "1.5", "1k", "auto", "{}", "{x}", "[1]", "", "None", "A-B")
"""Texts that are tried on each flag. Those that it takes decide its kind."""
COUNTS = {None: "one", 0: "one", "?": "at most one", "+": "at least one"}
"""How many values a flag takes, by argparse's nargs."""
REFUSED = object()
"""Stands for the value of a text that the flag refuses."""
JSON_PROBES: dict[str, tuple[object, ...]] = {
    "null": (None,), "bool": (True,), "int": (7, 2), "float": (1.5,), "text": ("abc",), "list": ([],), "object": ({},),
}  # fmt: skip
"""Values that are tried on each field, by the kind that it has where it takes one of them."""
OWNERS = ("VllmConfig", "ModelConfig", "ParallelConfig", "CacheConfig", "ObservabilityConfig")
"""Classes of vllm.config with fields that are config classes too; each such field has a flag of its name."""


def describe_flag(action: argparse.Action, names: list[str]) -> dict[str, object]:
    """The fields of sparkd's Flag. `names`: the long one first."""
    flag, *others = names
    negative = [option for option in others if option == f"--no-{flag.removeprefix('--')}"]
    values = {text: value for text in PROBES if (value := try_value(action, text)) is not REFUSED}
    return {
        "name": flag.removeprefix("--"),
        "kind": "switch" if action.nargs == 0 else find_kind(set(values)),
        "count": COUNTS.get(action.nargs, "at least one"),
        "aliases": [option for option in others if option not in negative],
        "negative": bool(negative),
        "optional": action.nargs != 0 and values.get("None", REFUSED) is None,
        "choices": [str(choice) for choice in action.choices or () if choice is not None],
        "folds": values.get("A-B") == "a_b",
        "registered": [] if action.choices else load_registered().get(flag, []),
    }


def load(name: str, *modules: str) -> Any:
    """The value of this name in the first of the modules that has it: builds of vLLM differ. Raises ImportError."""
    for module in modules:
        with contextlib.suppress(ImportError, AttributeError):
            return getattr(importlib.import_module(module), name)
    raise ImportError(f"{name} is in none of {modules}")


def attempt(read: Callable[[], Any], default: Any) -> Any:
    """What `read` returns, or the default where this build of vLLM raises."""
    try:
        return read()
    except Exception as error:  # this build has it elsewhere, or not at all
        print(f"left out: {error!r}", file=sys.stderr)
        return default


def list_registered(manager: str, *modules: str) -> list[str]:
    return [*load(manager, *modules).list_registered()]


def list_literal(name: str, module: str) -> list[str]:
    return sorted(get_args(load(name, module)))


@functools.cache
def load_registered() -> dict[str, list[str]]:
    """Names that vLLM itself registers, by flag; a plugin may register more."""
    names = {flag: attempt(functools.partial(list_literal, *where), []) for flag, *where in LITERALS}
    for flag, manager, *modules in MANAGERS:
        names[flag] = attempt(functools.partial(list_registered, manager, *modules), [])
    return names


def split_hint(hint: object) -> Iterator[Any]:
    """The types that a hint allows: unions and annotations are taken apart."""
    if hasattr(hint, "__metadata__"):  # Annotated, which is a class before Python 3.13
        yield from split_hint(get_args(hint)[0])
    elif is_union(hint):
        for part in get_args(hint):
            yield from split_hint(part)
    else:
        yield hint


def is_union(hint: object) -> bool:
    return getattr(get_origin(hint), "__name__", "") in ("UnionType", "Union")


def config_fields(cls: type, prefix: str = "") -> Iterator[dict[str, object]]:
    """Each field that JSON can set, as sparkd's Field. The fields of a field have dotted names."""
    adapter = load("TypeAdapter", "pydantic")(cls)
    for name, info in cls.__pydantic_fields__.items():  # type: ignore[attr-defined]
        hints = [*split_hint(info.annotation)]
        takes = [
            kind for kind, probes in JSON_PROBES.items() if any(field_takes(adapter, name, probe) for probe in probes)
        ]
        words = {word: field_takes(adapter, name, word) for word in list_words(hints)} if "text" not in takes else {}
        choices = [word for word, good in words.items() if good]
        folds = bool(choices) and all(field_takes(adapter, name, word.swapcase()) for word in choices)
        if info.init is not False and (takes or choices):
            yield {"name": prefix + name, "takes": " ".join(takes), "choices": choices, "folds": folds}
        if "object" in takes and not field_takes(adapter, name, {"no such field": 1}):  # a config class, no free dict
            for inner in filter(is_config, hints):
                yield from config_fields(inner, f"{prefix}{name}.")


def list_words(hints: list[object]) -> Iterator[str]:
    """The words of literals, then those of enumerations."""
    yield from (str(word) for hint in hints if get_origin(hint) is Literal for word in get_args(hint))
    enums = [hint for hint in hints if isinstance(hint, type) and issubclass(hint, enum.Enum)]
    members = [word for choices in enums for member in choices for word in (member.name, member.value)]
    yield from (word for word in members if isinstance(word, str))


def is_config(hint: object) -> bool:
    return isinstance(hint, type) and is_dataclass(hint)


def field_takes(adapter: Any, name: str, value: object) -> bool:
    """Whether pydantic takes the value for this field; the others may be missing."""
    try:
        adapter.validate_json(json.dumps({name: value}))
    except KeyError:  # the name of no member of an enumeration
        return False
    except Exception as error:  # pydantic's, or of a check between fields, which begins once each field is good
        faults = error.errors() if hasattr(error, "errors") else ()
        return not any(fault["loc"][:1] == (name,) and fault["type"] != "missing" for fault in faults)
    return True


def config_tables(flags: set[str]) -> dict[str, list[dict[str, object]]]:
    """Fields by flag, for each flag whose JSON becomes a class of vLLM's that refuses others."""
    tables = {}
    configs = importlib.import_module("vllm.config")
    for owner in OWNERS:
        for name, info in getattr(configs, owner).__pydantic_fields__.items():
            flag = name.replace("_", "-")  # not each field has one
            for hint in split_hint(info.annotation):
                if is_config(hint) and flag in flags:
                    tables[flag] = [*config_fields(hint)]
    return tables


def try_value(action: argparse.Action, text: str) -> object:
    try:
        return action.type(text) if callable(action.type) else text
    except Exception:  # a type of a build's own may raise anything
        return REFUSED


def find_kind(takes: set[str]) -> str:
    """The kind of a flag with one value, by those of PROBES that it takes."""
    if "abc" in takes:
        return "text" if "{x}" in takes else "text or object"
    if "auto" in takes:
        return "amount or auto"
    if "1k" in takes:
        return "amount"
    if "{}" in takes:
        return "json" if "[1]" in takes else "object"
    if "1.5" in takes:
        return "float"
    return "int" if "1" in takes else "text"  # a build's own type may refuse all of PROBES


def make_parsers() -> tuple[argparse.ArgumentParser, argparse.ArgumentParser]:
    """The parsers of `vllm`, and of its subcommand, which has the flags."""
    parser = load("FlexibleArgumentParser", "vllm.utils.argparse_utils", "vllm.utils")(prog="vllm")
    serve = parser.add_subparsers(dest="subparser").add_parser("serve")
    return parser, load("make_arg_parser", *ARGS)(serve)


def describe(parser: argparse.ArgumentParser) -> dict[str, object]:
    """The fields of sparkd's FlagTable, without the image."""
    actions = [action for action in parser._actions if action.option_strings and action.dest != "help"]
    with_long = [action for action in actions if action.option_strings[0].startswith("--")]
    # vLLM 0.33 hides the --no- forms from the actions; its parser takes them still.
    by_option = parser._option_string_actions.items()
    names = {
        action: [*dict.fromkeys((*action.option_strings, *(option for option, owner in by_option if owner is action)))]
        for action in with_long
    }
    flags = sorted((describe_flag(action, names[action]) for action in with_long), key=lambda row: str(row["name"]))
    return {
        "version": attempt(lambda: version("vllm"), "") or attempt(lambda: load("__version__", "vllm"), "unknown"),
        "flags": flags,
        "fields": attempt(lambda: config_tables({str(row["name"]) for row in flags}), {}),
        "variables": attempt(lambda: sorted(load("environment_variables", "vllm.envs")), []),
    }


if __name__ == "__main__":
    with contextlib.redirect_stdout(sys.stderr):  # what vLLM prints at its import
        packed = base64.b85encode(zlib.compress(json.dumps(describe(make_parsers()[1])).encode(), 9)).decode()
    # Docker splits a line of more than 16 KiB.
    print("", *(f"{MARK}{packed[at : at + 8000]}" for at in range(0, len(packed), 8000)), sep="\n", flush=True)
