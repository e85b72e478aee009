"""`sparkd demo`: status, preflight, explain and the page of example nodes that the package has; needs no Spark."""

from __future__ import annotations

import argparse
import asyncio
import os
import re
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from msgspec import Struct, json
from msgspec.structs import replace

from sparkd.agent.status.http_api import make_handler
from sparkd.base.host.files import Files
from sparkd.base.lib import read_data
from sparkd.base.lib.errors import UsageError
from sparkd.base.lib.http_server import HttpServer
from sparkd.base.status.model import PATH, parse
from sparkd.base.status.publisher import Published
from sparkd.tools.cli import console

STATES = ("serving", "loading", "blocked", "degraded")
ENGINE_LOG = "/var/log/engine.log"
"""In an example, lines of vLLM's before its last end."""
WRITTEN = datetime(2026, 1, 1, tzinfo=UTC)
"""Time at which the report of each example was written."""
NEXT = "next, on a Spark; it writes nothing:\n  sudo sparkd init --plan"
PORTS = 65536
_STAMP = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}\+00:00")


class Example(Struct, frozen=True):
    """The files of one node, by absolute path: what `Files` and `Host` read of a machine."""

    files: Mapping[str, str]
    """Content, a character for each byte."""
    sizes: Mapping[str, int] = {}
    """Sizes of files that have a hole behind their content, as the weights do."""
    links: Mapping[str, str] = {}
    folders: tuple[str, ...] = ()
    programs: tuple[str, ...] = ()
    """Files that are executable."""

    def write(self, root: Path) -> None:
        for path in self.folders:
            (root / path[1:]).mkdir(parents=True, exist_ok=True)
        for path, text in self.files.items():
            (root / path[1:]).write_bytes(text.encode("latin-1"))
        for path, size_bytes in self.sizes.items():
            os.truncate(root / path[1:], size_bytes)
        for path, target in self.links.items():
            (root / path[1:]).symlink_to(target)
        for path in self.programs:
            (root / path[1:]).chmod(0o755)


def read_example(state: str, now: datetime) -> Example:
    """An example whose report was written just now."""
    example = json.decode(read_data(f"demo/{state}.json"), type=Example)
    return replace(example, files={**example.files, PATH: move_stamps(example.files[PATH], now - WRITTEN)})


def move_stamps(report: str, by: timedelta) -> str:
    return _STAMP.sub(lambda at: (datetime.fromisoformat(at[0]) + by).isoformat(timespec="milliseconds"), report)


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
    if not 0 <= args.port <= PORTS - len(states):
        raise UsageError(f"--port {args.port}: no port for each page", "sparkd demo, which takes unused ones")
    print("Example nodes: none of their figures was measured, and none is of this machine.")
    with TemporaryDirectory(prefix="sparkd-demo-") as folder:
        reports = {state: _show(state, Path(folder, state)) for state in states}
    print()
    if not args.once and console.on_terminal():
        try:
            asyncio.run(serve_pages(reports, args.port))
        except KeyboardInterrupt:
            print()
    print(NEXT)


def _show(state: str, root: Path) -> Published:
    """Print what the commands print on that node, whose files are written below `root`."""
    from sparkd.tools.cli.logs import render_explanations
    from sparkd.tools.cli.main import main
    from sparkd.tools.cli.status import render_report

    example = read_example(state, datetime.now(UTC))
    example.write(root)
    print(f"\n--- {state}: sparkd status", flush=True)
    console.show(render_report(Files(str(root)), on_terminal=console.on_terminal())[0])
    if state == "blocked":
        print("\n--- the same node: sparkd preflight --dry-run", flush=True)
        main(["preflight", "--root", str(root)])
    if log := example.files.get(ENGINE_LOG):
        print("\n--- the engine's log there: journalctl -u sparkd-head | sparkd explain", flush=True)
        console.show(list(render_explanations(log.splitlines())))
    text = example.files[PATH]
    report = parse(text)
    assert report is not None, "an example has a report"
    return Published(report, text)


async def serve_pages(reports: Mapping[str, Published], port: int) -> None:
    """Serve the page of each example on a port of its own, until this is cancelled. Raises UsageError."""
    servers = []
    for number, state in enumerate(reports):
        at = port and port + number
        try:
            handle = make_handler(partial(reports.__getitem__, state), lambda: 0.0)
            servers.append(HttpServer("127.0.0.1", at, handle))
        except OSError as error:
            reason = (error.strerror or "").lower()
            raise UsageError(f"port {at}: {reason}", "sparkd demo, which takes unused ones") from None
        print(f"page of {state:<9} http://127.0.0.1:{servers[-1].port}/")
    print("end: Ctrl-C", flush=True)
    await asyncio.gather(*(server.serve() for server in servers))
