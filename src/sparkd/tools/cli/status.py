"""`sparkd status`: what the nodes are doing, from this node's report; needs neither root nor a running agent."""

from __future__ import annotations

import argparse
import signal
import time
from datetime import UTC, datetime

from sparkd.base.host.files import Files
from sparkd.base.lib.errors import ExitCode
from sparkd.base.lib.text import Parts
from sparkd.base.status.model import PATH, NodeReport, Phase, agent_running, parse, read_report
from sparkd.base.status.view import View
from sparkd.tools.cli import console
from sparkd.tools.cli.status_table import render

WATCH_SECONDS = 1.0
UNREADABLE = f"{PATH} is no report that this version can read: restart the unit after an upgrade"


def add_status(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print the report as it stands")
    parser.add_argument(
        "--watch", action="store_true", help="follow it on a live screen, drawn where it changes, until interrupted"
    )
    parser.epilog = "exit codes, of this node: 0 serving, 20 on the way, 21 down"
    parser.set_defaults(run=show_status)


def show_status(args: argparse.Namespace) -> int:
    files, on_terminal = Files(), console.on_terminal() and not args.json
    if args.watch and on_terminal:
        return watch(files)
    while True:
        shown, code = render_report(files, as_json=args.json, on_terminal=on_terminal)
        console.show(shown)
        if not args.watch:
            return code
        time.sleep(WATCH_SECONDS)


def watch(files: Files) -> int:
    """Until it is interrupted; its last state stays on the terminal."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # else the terminal stays on the other screen
    shown, code = render_report(files, on_terminal=True)
    try:
        with console.Screen() as live:
            while True:
                live.show(shown)
                time.sleep(WATCH_SECONDS)
                shown, code = render_report(files, on_terminal=True)
    except KeyboardInterrupt:
        console.show(shown)
    return code


def render_report(files: Files, *, as_json: bool = False, on_terminal: bool = False) -> tuple[Parts, ExitCode]:
    """What to print, and the exit code."""
    text = read_report(files)
    report = parse(text)
    alive = report is not None and agent_running(files, report)
    code = exit_code(report, alive=alive)
    if as_json:
        return [text.strip() or "{}"], code
    if report is None:
        return [UNREADABLE if text else "no report: sparkd has not run since boot"], code
    return render(report, View(datetime.now(UTC), alive), whole=not on_terminal), code


def exit_code(report: NodeReport | None, *, alive: bool) -> ExitCode:
    if report is None or not alive or report.phase in (Phase.BLOCKED, Phase.STOPPED, Phase.FAILED):
        return ExitCode.DOWN
    return ExitCode.GOOD if report.phase in (Phase.SERVING, Phase.DEGRADED) else ExitCode.ON_THE_WAY
