"""In the engine's image: what its own parser of `vllm serve` takes, and what it says to lines of words. Lines in,
answers out, as JSON files. What a flag makes of a value is tried out, not read from its source."""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import sys
from importlib.metadata import version
from pathlib import Path

from vllm.entrypoints.launchers.cli_args import make_arg_parser  # type: ignore[import-not-found]
from vllm.utils.argparse_utils import FlexibleArgumentParser  # type: ignore[import-not-found]

PROBES = ("abc", "1", "1.5", "1k", "auto", "{}", "{x}", "[1]", "", "None", "A-B")
COUNTS = {None: "one", 0: "one", "?": "at most one", "+": "at least one"}


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
        "repeats": isinstance(action, argparse._AppendAction),
    }


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
        "refusals": [refusal(parser, words) for words in lines],
    }
    Path(sys.argv[2]).write_text(json.dumps(answers))
