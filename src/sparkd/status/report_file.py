"""The report as this node's agent has written it, for commands and checks beside it."""

from __future__ import annotations

from sparkd.host.files import Files
from sparkd.host.processes import read_process
from sparkd.status.model import LIMIT_BYTES, NodeReport, parse

PATH = "/run/sparkd/report.json"


def read_report(files: Files) -> str:
    """The report that this node's agent has written, as it stands; empty where there is none."""
    try:
        return files.text(PATH, LIMIT_BYTES)
    except OSError:
        return ""


def agent_running(files: Files, report: NodeReport) -> bool:
    """Whether the agent that wrote the report still runs."""
    try:
        process = read_process(files, report.pid)
    except OSError:
        return False
    return process is not None and process.start_time == report.start_time and not process.dead


def read_living_report(files: Files) -> NodeReport | None:
    """None where no agent runs: the report of an earlier one is old."""
    report = parse(read_report(files))
    return report if report is not None and agent_running(files, report) else None
