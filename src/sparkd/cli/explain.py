"""`sparkd explain`: what the known errors of a log mean, and what to do."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterable, Iterator
from functools import partial

from sparkd.cli import console
from sparkd.engine.log_lines import LineSplitter
from sparkd.lib.errors import UsageError
from sparkd.lib.text import sanitize
from sparkd.vllm.known_errors import KnownError, explain

CHUNK_BYTES = 1 << 16
SHOWN = 200
"""Characters of a line."""
NOTHING = "no error that sparkd knows; it may still be one"


def add_explain(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "line", nargs="?", default="-", metavar="LINE|-", help="one line, or - (default) for a log on stdin"
    )
    parser.epilog = "such as: journalctl -b -u sparkd-head | sparkd explain; or: journalctl -k | sparkd explain"
    parser.set_defaults(run=show_explanations)


def show_explanations(args: argparse.Namespace) -> None:
    lines = _stdin_lines() if args.line == "-" else [args.line]
    console.show(list(render_explanations(lines)) or [NOTHING])


def render_explanations(lines: Iterable[str]) -> Iterator[str]:
    """Each known error once, at its first line, with a count of its lines."""
    seen: dict[KnownError, tuple[str, int]] = {}
    for line in lines:
        if (known := explain(line)) is not None:
            first, count = seen.get(known, (line, 0))
            seen[known] = first, count + 1
    for known, (line, count) in seen.items():
        times = f" ({count} lines)" if count > 1 else ""
        yield f"{sanitize(line.strip(), SHOWN)}{times}"
        yield f"  means: {known.meaning}\n  do:    {known.remedy}\n  known: {known.source}"


def _stdin_lines() -> Iterator[str]:
    if sys.stdin is None:  # closed: <&-
        raise UsageError("there is no stdin", "give a line, or a log: journalctl -b -u sparkd-head | sparkd explain")
    splitter = LineSplitter()
    for data in iter(partial(os.read, sys.stdin.fileno(), CHUNK_BYTES), b""):
        yield from splitter.feed(data)
    yield from splitter.flush()
