"""`sparkd logs` and `capture`: what happened on the nodes, for a person here, or as an archive for a helper.

`logs` prints the journals of all nodes as one, marks the first failure and explains known errors. The archive of
`capture` has no secrets.
"""

import argparse
import asyncio
import json
import os
import sys
from collections.abc import Iterator
from contextlib import suppress
from datetime import datetime, time, timedelta

from sparkd.base.config import Settings, load_settings
from sparkd.base.host import Host
from sparkd.base.host.journal import Query
from sparkd.base.lib.errors import AS_ROOT, BlockedError, UsageError
from sparkd.base.lib.log import PRIORITIES
from sparkd.base.lib.text import Table, sanitize
from sparkd.base.lib.times import parse_time
from sparkd.tools.cli import console
from sparkd.tools.support.failure_marks import FailureMarker
from sparkd.tools.support.node_logs import Entry, merge, open_logs


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
        at = _local_time(entry)
        style = {"error": "block", "warning": "warn"}.get(_find_level_name(entry), "")
        yield (f"{at:%b %d %H:%M:%S}.{at.microsecond // 1000:03}", entry.node, entry.line.text), style
        if is_first or known is not None:
            meaning = f"{known.meaning}; do: {known.remedy}" if known is not None else ""
            text = ": ".join(filter(None, ("first failure" if is_first else "", meaning)))
            yield ("", "", f"^ {text}"), "block" if is_first else "warn"


def render_json(entries: list[Entry], marker: FailureMarker) -> Iterator[str]:
    for log_entry in entries:
        known, is_first = marker.mark(log_entry.line)
        row = {
            "at": _local_time(log_entry).isoformat(timespec="microseconds"),
            "node": log_entry.node,
            "level": _find_level_name(log_entry),
            "engine": log_entry.engine,
            "text": log_entry.line.text,
            "first_failure": is_first,
            "meaning": known.meaning if known else "",
            "remedy": known.remedy if known else "",
        }
        yield json.dumps(row, ensure_ascii=False)


def _local_time(entry: Entry) -> datetime:
    return datetime.fromtimestamp(entry.at_us / 1e6).astimezone()


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
