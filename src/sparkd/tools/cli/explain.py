"""`sparkd explain`: what known errors in a log mean, and what to do."""

import argparse
import os
import sys
from collections.abc import Iterable, Iterator
from functools import partial

from sparkd.base.host.kernel_events import parse_printed
from sparkd.base.lib.errors import UsageError
from sparkd.base.lib.text import sanitize
from sparkd.base.vllm.known_errors import KnownError, explain
from sparkd.base.vllm.log_lines import LineSplitter
from sparkd.tools.cli import console


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


def find_known(lines: Iterable[str]) -> dict[KnownError, tuple[str, int]]:
    """Each known error once, with its first line and a count of its lines."""
    known_errors: dict[KnownError, tuple[str, int]] = {}
    for line in lines:
        if (known := _explain_kernel(line) or explain(line)) is not None:
            first, count = known_errors.get(known, (line, 0))
            known_errors[known] = first, count + 1
    return known_errors


def render_explanations(lines: Iterable[str]) -> Iterator[str]:
    """The first line of each known error, with its meaning and what to do."""
    for known, (line, count) in find_known(lines).items():
        times = f" ({count} lines)" if count > 1 else ""
        yield f"{sanitize(line.strip(), 200)}{times}"
        yield f"  means: {known.meaning}\n  do:    {known.remedy}\n  known: {known.source}"


def _explain_kernel(line: str) -> KnownError | None:
    """The known error of a line that the kernel printed; None for any other line."""
    if (event := parse_printed(line)) is None:
        return None
    remedy = f"{event.effect.action}: {event.effect.hint}"
    return KnownError((event.kind,), event.reason, remedy, "sparkd's table of the kernel's messages")


def _read_stdin_lines() -> Iterator[str]:
    console.announce_paste("a log")
    splitter, chunk = LineSplitter(), b""
    for chunk in iter(partial(os.read, sys.stdin.fileno(), 1 << 16), b""):
        yield from splitter.feed(chunk)
    if not chunk:
        raise UsageError("nothing came on stdin", "a line, or a log: journalctl -b -u sparkd-head | sparkd explain")
    yield from splitter.flush()
