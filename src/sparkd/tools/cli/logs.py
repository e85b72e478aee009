"""The commands that show what happened after a failure.

`sparkd logs` prints the journals of all nodes as one, marks the first failure and explains known errors. `explain`
prints what known errors mean, and what to do. `capture` writes an archive for a helper, without secrets.
"""

import argparse
import asyncio
import json
import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import suppress
from datetime import datetime, time, timedelta
from functools import partial

from sparkd.agent.cluster.failure_marks import FailureMarker
from sparkd.agent.cluster.node_logs import Entry, merge, open_logs
from sparkd.base.config import Settings, load_settings
from sparkd.base.host import Host
from sparkd.base.host.journal import Query
from sparkd.base.host.kernel_events import parse_printed
from sparkd.base.lib.errors import AS_ROOT, BlockedError, UsageError
from sparkd.base.lib.log import PRIORITIES
from sparkd.base.lib.text import Table, sanitize
from sparkd.base.lib.times import parse_time
from sparkd.base.vllm.known_errors import KnownError, explain
from sparkd.base.vllm.log_lines import LineSplitter
from sparkd.tools.cli import console


def add_logs(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-f", "--follow", action="store_true", help="continue with new lines until interrupted")
    parser.add_argument("--since", metavar="TIME", default="1h", help="such as 10m, 2d, 14:30 or 2026-11-23T14:30 (1h)")
    parser.add_argument("--level", choices=tuple(PRIORITIES), default="debug", help="only this level and above (debug)")
    parser.add_argument("--engine", action="store_true", help="only the engines' lines")
    parser.add_argument("--json", action="store_true", help="print one JSON object a line")
    parser.epilog = "Other nodes' lines come from their agents: where none runs, look there with journalctl."
    parser.set_defaults(run=show_logs)


def show_logs(args: argparse.Namespace) -> None:
    since = parse_since(args.since, datetime.now().astimezone())
    query = Query(max(0, round(since.timestamp() * 1_000_000)), priority=PRIORITIES[args.level], engine=args.engine)
    if os.geteuid():
        raise UsageError("only root may read the journal and the cluster's key", AS_ROOT)
    asyncio.run(_print_logs(load_settings(os.environ), query, args))


async def _print_logs(settings: Settings, query: Query, args: argparse.Namespace) -> None:
    """Print the nodes' lines, and a node's trouble each time it changes. Raises BlockedError where no node answers."""
    marker = FailureMarker()
    reported_troubles: dict[str, str] = {}  # by the node's address
    async with open_logs(settings, Host()) as (logs, peer_trouble):
        if peer_trouble:
            report_trouble("", f"only this node's lines: {sanitize(peer_trouble, 400)}", as_json=args.json)
        while True:
            answers = await asyncio.gather(*(log.read_new(query) for log in logs))
            entries = merge(answer.entries for answer in answers)
            if entries:
                _print_entries(entries, marker, as_json=args.json)
            for log, answer in zip(logs, answers, strict=True):
                if answer.trouble != reported_troubles.get(log.address, ""):
                    reported_troubles[log.address] = answer.trouble
                    report_trouble(log.address or "this node", answer.trouble, as_json=args.json)
            if not args.follow:
                break
            await asyncio.sleep(1)
    if all(answer.is_unread for answer in answers):
        raise BlockedError("no node's log can be read", "on each node: journalctl -u sparkd-head -u sparkd-worker")
    if not entries and not args.json:
        print(f"no lines since {args.since}; what the node does now: sparkd status")


def report_trouble(node: str, trouble: str, *, as_json: bool) -> None:
    """Print a node's trouble to stderr, and as JSON among its lines. `trouble`: empty where the node answers again."""
    print(f"sparkd: {node and f'{node}: '}{trouble or 'answers again'}", file=sys.stderr, flush=True)
    if as_json:
        print(json.dumps({"node": node, "trouble": trouble}, ensure_ascii=False), flush=True)


def _print_entries(entries: list[Entry], marker: FailureMarker, *, as_json: bool) -> None:
    if as_json:
        console.show(list(render_json(entries, marker)))
    else:
        rows = list(render_rows(entries, marker))
        console.show([Table([row for row, _ in rows], [level for _, level in rows])])


def render_rows(entries: list[Entry], marker: FailureMarker) -> Iterator[tuple[tuple[str, str, str], str]]:
    """Rows of time, node and text, each with its style. Below a failure comes a row with what it means."""
    for entry in entries:
        known, is_first = marker.mark(entry.line)
        at = datetime.fromtimestamp(entry.at_us / 1e6).astimezone()
        style = {"error": "block", "warning": "warn"}.get(_find_level_name(entry), "")
        yield (f"{at:%b %d %H:%M:%S}.{at.microsecond // 1000:03}", entry.node, entry.line.text), style
        if is_first or known is not None:
            meaning = [f"{known.meaning}; do: {known.remedy}"] if known is not None else []
            text = ": ".join([*["first failure"] * is_first, *meaning])
            yield ("", "", f"^ {text}"), "block" if is_first else "warn"


def render_json(entries: list[Entry], marker: FailureMarker) -> Iterator[str]:
    for entry in entries:
        known, is_first = marker.mark(entry.line)
        at = datetime.fromtimestamp(entry.at_us / 1e6).astimezone()
        line = {"node": entry.node, "level": _find_level_name(entry), "engine": entry.engine, "text": entry.line.text}
        error = {"meaning": known.meaning if known else "", "remedy": known.remedy if known else ""}
        row = {"at": at.isoformat(timespec="microseconds"), **line, "first_failure": is_first, **error}
        yield json.dumps(row, ensure_ascii=False)


def _find_level_name(entry: Entry) -> str:
    return next((name for name in ("error", "warning", "info") if entry.line.priority <= PRIORITIES[name]), "debug")


def parse_since(text: str, now: datetime) -> datetime:
    """The time that 10m (before `now`), 14:30 (the last one), or a date with or without time means.

    Raises UsageError.
    """
    if text[:1].isdigit() and text[-1:].isalpha() and not {"-", ":"} & {*text}:
        return now - timedelta(seconds=parse_time("--since", text, 0, 366 * 86400))
    with suppress(ValueError, OverflowError):
        if "-" in text:
            return datetime.fromisoformat(text).astimezone()
        if ":" in text:
            today = datetime.combine(now.date(), time.fromisoformat(text)).astimezone()
            return today if today <= now else today - timedelta(days=1)
    raise UsageError(f"--since {sanitize(text, 40)}: no time", "such as 10m, 2d, 14:30 or 2026-11-23T14:30")


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


def add_capture(parser: argparse.ArgumentParser) -> None:
    target = "where to write it, instead of sparkd-capture-NODE-TIME.tar.gz"
    parser.add_argument("--output", metavar="FILE", help=target)
    parser.add_argument("--issue", action="store_true", help="only print a summary to paste into a forum")
    parser.epilog = "Look into it before you give it away: it has host names, addresses, paths and names of processes."
    parser.set_defaults(run=capture, as_root=("only root may read all that it needs", AS_ROOT))


def capture(args: argparse.Namespace) -> None:
    from sparkd.tools.measure.interrupts import catch_ends
    from sparkd.tools.support.capture_collector import Collector  # it can act; `explain` can't
    from sparkd.tools.support.summary import summarize

    catch_ends(once=True)
    collector = Collector(Host())
    if args.issue:
        print(collector.redact(summarize(collector.settings, collector.host)), end="")
        return
    path, size_bytes = collector.save(args.output)
    for line in collector.missing:
        print(f"not in it: {line}")
    print(f"{path}: {size_bytes / 1e6:.1f} MB; look into it before you give it away")
