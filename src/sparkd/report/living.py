"""The report that this node's agent has written, and whether that agent still lives."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sparkd.host.files import Files
    from sparkd.report.node_report import NodeReport

PATH = "/run/sparkd/report.json"
LIMIT_BYTES = 1 << 20


def text(files: Files) -> str:
    """The report as it stands; empty where there is none."""
    try:
        return files.text(PATH, LIMIT_BYTES)
    except OSError:
        return ""


def is_alive(files: Files, report: NodeReport) -> bool:
    """Whether the agent that wrote the report still runs."""
    from sparkd.host.processes import parse_stat

    try:
        process = parse_stat(files.bytes(f"/proc/{report.pid}/stat", limit=4096))
    except OSError:
        return False
    return process is not None and process.start_time == report.start_time and not process.dead
