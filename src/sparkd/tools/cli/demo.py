"""`sparkd demo`: print status, preflight and explain, and serve the page, of example nodes. It needs no Spark."""

import argparse
import asyncio
import re
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from functools import partial

from msgspec import Struct, json

from sparkd.agent.status.http_api import make_handler
from sparkd.base.lib import prepared, read_data
from sparkd.base.lib.errors import UsageError
from sparkd.base.lib.http_server import HttpServer
from sparkd.base.lib.text import Parts
from sparkd.base.status.model import NodeReport, dump
from sparkd.base.status.publisher import Published
from sparkd.base.status.view import View
from sparkd.tools.cli import console
from sparkd.tools.node.status_text import render
from sparkd.tools.support.known_lines import render_explanations

STATES = ("serving", "loading", "blocked", "degraded")
WRITTEN = datetime(2026, 1, 1, tzinfo=UTC)
"""Time of the report of each example, before it is moved to now."""
NEXT = "next, on a Spark; it writes nothing:\n  sudo sparkd init --plan"
_STAMP = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}\+00:00")


class Example(Struct, frozen=True):
    """The record of one node."""

    report: NodeReport
    served: str = ""
    """URL and model, as `sparkd status` prints them."""
    preflight: Parts = ()
    """What `sparkd preflight --dry-run` prints."""
    log: tuple[str, ...] = ()
    """Lines that vLLM logged before its last end."""


def read_example(state: str, now: datetime) -> Example:
    """Read an example, with its times moved as if its report had been written at `now`."""
    return json.decode(move_stamps(read_data(f"demo/{state}.json").decode(), now - WRITTEN), type=prepared(Example))


def move_stamps(report: str, by: timedelta) -> str:
    """Add `by` to every time in the JSON of a report."""
    return _STAMP.sub(lambda match: (datetime.fromisoformat(match[0]) + by).isoformat(timespec="milliseconds"), report)


def add_demo(parser: argparse.ArgumentParser) -> None:
    names = ", ".join(STATES)
    parser.add_argument("state", nargs="?", choices=STATES, metavar="STATE", help=f"only this example: {names}")
    parser.add_argument("--once", action="store_true", help="print, and end: no page (as without a terminal)")
    parser.add_argument(
        "--port", type=int, default=0, help="port of the first page on 127.0.0.1 (default: unused ones)"
    )
    parser.epilog = "No figure in it was measured. Nothing of this machine is changed or examined."
    parser.set_defaults(run=demo)


def demo(args: argparse.Namespace) -> None:
    states = (args.state,) if args.state else STATES
    if not 0 <= args.port <= 65536 - len(states):
        raise UsageError(f"--port {args.port}: no port for each page", "sparkd demo, which takes unused ones")
    print("Example nodes: none of their figures was measured, and none is of this machine.")
    reports = {state: _print_example(state) for state in states}
    print()
    if not args.once and console.on_terminal():
        try:
            asyncio.run(serve_pages(reports, args.port))
        except KeyboardInterrupt:
            print()
    print(NEXT)


def _print_example(state: str) -> Published:
    """Print what the commands print on that node. Returns its report."""
    now = datetime.now(UTC)
    example = read_example(state, now)
    print(f"\n--- {state}: sparkd status", flush=True)
    console.show(render(example.report, View(now, alive=True), example.served, whole=not console.on_terminal()))
    if example.preflight:
        print("\n--- the same node: sparkd preflight --dry-run", flush=True)
        console.show(example.preflight)
    if example.log:
        print("\n--- the engine's log there: journalctl -u sparkd-head | sparkd explain", flush=True)
        console.show(list(render_explanations(example.log)))
    return Published(example.report, dump(example.report))


async def serve_pages(reports: Mapping[str, Published], port: int) -> None:
    """Serve the page of each example on a port of its own, until this is cancelled. Raises UsageError."""
    servers = []
    for number, state in enumerate(reports):
        page_port = port and port + number
        try:
            handle = make_handler(partial(reports.__getitem__, state), lambda: 0.0)
            servers.append(HttpServer("127.0.0.1", page_port, handle))
        except OSError as error:
            reason = (error.strerror or "").lower()
            raise UsageError(f"port {page_port}: {reason}", "sparkd demo, which takes unused ones") from None
        print(f"page of {state:<9} http://127.0.0.1:{servers[-1].port}/")
    print("end: Ctrl-C", flush=True)
    await asyncio.gather(*(server.serve() for server in servers))
