"""`sparkd status`: what the nodes are doing, from this node's report; needs neither root nor a running agent."""

from __future__ import annotations

import argparse
import time
from datetime import UTC, datetime

from sparkd.cli import console
from sparkd.host.files import Files
from sparkd.lib.errors import ExitCode
from sparkd.lib.text import Parts
from sparkd.status.model import NodeReport, Phase, agent_running, parse, read_report
from sparkd.status.table import View, render

WATCH_SECONDS = 1.0


def add_status(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print the report as it stands")
    parser.add_argument("--watch", action="store_true", help="print it again each second until interrupted")
    parser.epilog = "exit codes, of this node: 0 serving, 20 on the way, 21 down"
    parser.set_defaults(run=show_status)


def show_status(args: argparse.Namespace) -> int:
    while True:
        shown, code = render_report(Files(), as_json=args.json)
        console.show(shown, clear=args.watch)
        if not args.watch:
            return code
        time.sleep(WATCH_SECONDS)


def render_report(files: Files, *, as_json: bool) -> tuple[Parts, ExitCode]:
    """What to print, and the exit code."""
    text = read_report(files)
    report = parse(text)
    alive = report is not None and agent_running(files, report)
    code = exit_code(report, alive=alive)
    if as_json:
        return [text.strip() or "{}"], code
    if report is None:
        return ["no report: sparkd has not run since boot"], code
    return render(report, View(datetime.now(UTC), alive)), code


def exit_code(report: NodeReport | None, *, alive: bool) -> ExitCode:
    if report is None or not alive or report.phase in (Phase.BLOCKED, Phase.STOPPED, Phase.FAILED):
        return ExitCode.DOWN
    return ExitCode.GOOD if report.phase in (Phase.SERVING, Phase.DEGRADED) else ExitCode.ON_THE_WAY
