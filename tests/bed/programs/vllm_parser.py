"""In the engine's image: what its own parser of `vllm serve` takes, and what it says to lines of words. Lines in,
answers out, as JSON files. What a flag makes of a value is tried out, not read from its source."""

from __future__ import annotations

import argparse
import contextlib
import enum
import io
import json
import sys
from collections.abc import Iterator
from dataclasses import is_dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Literal, get_args, get_origin

from pydantic import TypeAdapter, ValidationError
from vllm import config as configs  # type: ignore[import-not-found]
from vllm.entrypoints.launchers.cli_args import make_arg_parser  # type: ignore[import-not-found]
from vllm.model_executor.model_loader import LoadFormats  # type: ignore[import-not-found]
from vllm.reasoning import ReasoningParserManager  # type: ignore[import-not-found]
from vllm.tool_parsers import ToolParserManager  # type: ignore[import-not-found]
from vllm.utils.argparse_utils import FlexibleArgumentParser  # type: ignore[import-not-found]

PROBES = ("abc", "1", "1.5", "1k", "auto", "{}", "{x}", "[1]", "", "None", "A-B")
COUNTS = {None: "one", 0: "one", "?": "at most one", "+": "at least one"}

JSON_PROBES: dict[str, tuple[object, ...]] = {
    "null": (None,), "bool": (True,), "int": (7, 2), "float": (1.5,), "text": ("abc",), "list": ([],), "object": ({},),
}  # fmt: skip
OWNERS = ("VllmConfig", "ModelConfig", "ParallelConfig", "CacheConfig", "ObservabilityConfig")
"""Classes of vllm.config with fields that are classes of fields, each behind a flag of its name."""


def described(action: argparse.Action) -> dict[str, object]:
    long, *others = action.option_strings
    negative = [word for word in others if word == f"--no-{long.removeprefix('--')}"]
    read = {text: value for text in PROBES if (value := tried(action, text)) is not REFUSED}
    return {
        "name": long.removeprefix("--"),
        "kind": "switch" if action.nargs == 0 else kind(set(read), long),
        "count": COUNTS[action.nargs],
        "aliases": [word for word in others if word not in negative],
        "negative": bool(negative),
        "optional": action.nargs != 0 and read.get("None", REFUSED) is None,
        "choices": [str(one) for one in action.choices or () if one is not None],
        "folds": read.get("A-B") == "a_b",
        "registered": registered().get(long, []),
    }


def registered() -> dict[str, list[str]]:
    """Names that vLLM itself registers; a plugin may register more."""
    return {
        "--load-format": sorted(get_args(LoadFormats)),
        "--reasoning-parser": ReasoningParserManager.list_registered(),
        "--tool-call-parser": ToolParserManager.list_registered(),
    }


def parts(hint: object) -> Iterator[object]:
    """What a hint may be, one by one: unions and annotations taken apart."""
    if not get_args(hint) or (isinstance(get_origin(hint), type) and not is_union(hint)) or get_origin(hint) is Literal:
        yield hint
    else:
        for one in get_args(hint)[: 1 if hasattr(hint, "__metadata__") else None]:
            yield from parts(one)


def is_union(hint: object) -> bool:
    return getattr(get_origin(hint), "__name__", "") in ("UnionType", "Union")


def config_fields(cls: type, prefix: str = "") -> Iterator[dict[str, object]]:
    """Each field that JSON can set, with the kinds that it takes, and its choices. Fields of fields are dotted."""
    adapter: TypeAdapter[object] = TypeAdapter(cls)
    for name, info in cls.__pydantic_fields__.items():  # type: ignore[attr-defined]
        hints = [*parts(info.annotation)]
        words = [str(one) for hint in hints if get_origin(hint) is Literal for one in get_args(hint)]
        for hint in hints:
            if isinstance(hint, type) and issubclass(hint, enum.Enum):
                words += [one for member in hint for one in (member.name, member.value) if isinstance(one, str)]
        takes = [kind for kind, probes in JSON_PROBES.items() if any(field_takes(adapter, name, one) for one in probes)]
        choices = [] if "text" in takes else [word for word in dict.fromkeys(words) if field_takes(adapter, name, word)]
        folds = bool(choices) and all(field_takes(adapter, name, word.swapcase()) for word in choices)
        if info.init is not False and (takes or choices):
            yield {"name": prefix + name, "takes": " ".join(takes), "choices": choices, "folds": folds}
        for hint in hints:
            closed = "object" in takes and not field_takes(adapter, name, {"no such field": 1})
            if isinstance(hint, type) and is_dataclass(hint) and closed:
                yield from config_fields(hint, f"{prefix}{name}.")


def field_takes(adapter: TypeAdapter[object], name: str, value: object) -> bool:
    try:
        adapter.validate_json(json.dumps({name: value}))
    except ValidationError as error:
        return not any(one["loc"][:1] == (name,) and one["type"] != "missing" for one in error.errors())
    except KeyError:  # the name of no member of an enumeration
        return False
    except Exception:  # a check between fields, each of which was read
        return True
    return True


def config_tables(flags: set[str]) -> dict[str, list[dict[str, object]]]:
    """Fields by flag, for each flag whose JSON becomes a class of vLLM's that refuses others."""
    found = {}
    for owner in OWNERS:
        for name, info in getattr(configs, owner).__pydantic_fields__.items():
            flag = name.replace("_", "-")
            for hint in parts(info.annotation):
                if isinstance(hint, type) and is_dataclass(hint) and flag in flags:
                    found[flag] = [*config_fields(hint)]
    return found


REFUSED = object()


def tried(action: argparse.Action, text: str) -> object:
    try:
        return action.type(text) if callable(action.type) else text
    except (argparse.ArgumentTypeError, TypeError, ValueError):
        return REFUSED


def kind(takes: set[str], flag: str) -> str:
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
    assert "1" in takes, f"{flag} takes none of {PROBES}"
    return "int"


def refusal(parser: argparse.ArgumentParser, words: list[str]) -> str:
    """What it says to words that it ends for; empty where it takes them."""
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            parser.parse_args(words)
    except SystemExit as end:
        assert end.code == 2, (words, end.code)
        return said.getvalue().strip().splitlines()[-1]
    except Exception as error:  # it has no handler for some of them, and ends as well
        return repr(error)
    return ""


if __name__ == "__main__":
    # As the command `vllm` builds it: the flags are those of a subcommand.
    parser = FlexibleArgumentParser(prog="vllm")
    serve = make_arg_parser(parser.add_subparsers(dest="subparser").add_parser("serve"))
    actions = [action for action in serve._actions if action.option_strings and action.dest != "help"]
    lines = json.loads(Path(sys.argv[1]).read_text())
    answers = {
        "version": version("vllm"),
        "flags": [described(action) for action in actions],
        "configs": config_tables({action.option_strings[0].removeprefix("--") for action in actions}),
        "refusals": [refusal(parser, words) for words in lines],
    }
    Path(sys.argv[2]).write_text(json.dumps(answers))
