"""`sparkd status`: what this node is doing, from its report; needs neither root nor a living agent."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from sparkd.errors import ExitCode

if TYPE_CHECKING:
    from sparkd.host.files import Files
    from sparkd.report.node_report import NodeReport

REPORT = "/run/sparkd/report.json"
REPORT_LIMIT_BYTES = 1 << 20
WATCH_SECONDS = 1.0


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print the report as it stands")
    parser.add_argument("--watch", action="store_true", help="print it again each second until interrupted")
    parser.epilog = "exit codes: 0 serving, 20 on the way, 21 down"


def run(args: argparse.Namespace) -> int:
    import time

    from sparkd.host.files import Files

    while True:
        code = _show(Files(), as_json=args.json)
        if not args.watch:
            return code
        time.sleep(WATCH_SECONDS)


def _show(files: Files, *, as_json: bool) -> int:
    from sparkd.report.node_report import parse

    try:
        text = files.text(REPORT, REPORT_LIMIT_BYTES)
    except OSError:
        text = ""
    report = parse(text)
    alive = report is not None and is_alive(files, report)
    if as_json:
        print(text.strip() or "{}")
    else:
        print("no report: sparkd has not run since boot" if report is None else describe(report, alive=alive))
    return exit_code(report, alive=alive)


def is_alive(files: Files, report: NodeReport) -> bool:
    """Whether the agent that wrote the report still runs."""
    from sparkd.host.processes import parse_stat

    try:
        process = parse_stat(files.bytes(f"/proc/{report.pid}/stat", limit=4096))
    except OSError:
        return False
    return process is not None and process.start_time == report.start_time and not process.dead


def exit_code(report: NodeReport | None, *, alive: bool) -> ExitCode:
    from sparkd.report.node_report import Phase

    if report is None or not alive or report.phase in (Phase.BLOCKED, Phase.STOPPED, Phase.FAILED):
        return ExitCode.DOWN
    return ExitCode.GOOD if report.phase in (Phase.SERVING, Phase.DEGRADED) else ExitCode.ON_THE_WAY


def describe(report: NodeReport, *, alive: bool) -> str:
    """A few lines for a person."""
    phase = report.phase.value if alive else f"{report.phase.value} (its agent is gone)"
    rows = [
        ("node", f"{report.node}, rank {report.rank} ({report.role})"),
        ("phase", phase),
        ("since", report.since),
        ("message", report.message),
        ("engine", report.engine.container_id[:12]),
        ("plan", report.plan_digest[:12]),
        ("last cause", report.last_cause),
    ]
    rows += [
        (f"{finding.level}", f"{finding.id}: {finding.reason}") for finding in report.findings if finding.level != "ok"
    ]
    return "\n".join(f"{name:<11} {value}" for name, value in rows if value)
