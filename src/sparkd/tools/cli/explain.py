"""`sparkd explain`: what known errors in a log mean, and what to do."""

import argparse
import os
import sys
from collections.abc import Iterator
from functools import partial

from sparkd.base.lib.errors import UsageError
from sparkd.base.lib.text import sanitize
from sparkd.base.vllm.log_lines import LineSplitter
from sparkd.tools.cli import console
from sparkd.tools.support.known_lines import find_known, render_explanations


def add_explain(parser: argparse.ArgumentParser) -> None:
    source = "one line, or - (default) for a log on stdin"
    parser.add_argument("line", nargs="?", default="-", metavar="LINE|-", help=source)
    console.add_json(parser)
    parser.epilog = "such as: journalctl -b -u sparkd-head | sparkd explain; or: journalctl -k | sparkd explain"
    parser.set_defaults(run=show_explanations)


def show_explanations(args: argparse.Namespace) -> None:
    lines = _read_stdin_lines() if args.line == "-" else [args.line]
    if args.json:
        errors = [
            {"line": sanitize(line.strip()), "lines": count, "meaning": error.meaning, "remedy": error.remedy}
            for error, (line, count) in find_known(lines).items()
        ]
        console.show_json(known=errors)
        return
    console.show(list(render_explanations(lines)) or ["no error that sparkd knows; it may still be one"])


def _read_stdin_lines() -> Iterator[str]:
    console.announce_paste("a log")
    splitter, chunk = LineSplitter(), b""
    for chunk in iter(partial(os.read, sys.stdin.fileno(), 1 << 16), b""):
        yield from splitter.feed(chunk)
    if not chunk:
        raise UsageError("nothing came on stdin", "a line, or a log: journalctl -b -u sparkd-head | sparkd explain")
    yield from splitter.flush()
