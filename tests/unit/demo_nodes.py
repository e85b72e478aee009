"""The examples of `sparkd demo`: the reports of the page's tests, and what preflight finds on a tree."""

import os
import re
from datetime import UTC, datetime
from pathlib import Path

import pytest
from msgspec import json
from msgspec.structs import replace
from tests.machines.areas import base, healthy, memory
from tests.tree import Tree
from tests.unit import page_reports
from tests.unit.page_reports import GIB, ago, node

from sparkd.agent.preflight.check import Level
from sparkd.base.config import load_settings
from sparkd.base.host import Host
from sparkd.base.host.files import Files
from sparkd.base.lib.text import Table
from sparkd.base.status.model import (
    Contact,
    FindingReport,
    MemoryReport,
    NodeReport,
    PeerStatus,
    Phase,
    RestartReport,
)
from sparkd.tools.cli.demo import WRITTEN, Example, move_stamps
from sparkd.tools.cli.status import describe_served
from sparkd.tools.node.dry_run import examine_settings
from sparkd.tools.node.render import PreflightReport, parts

DATA = Path(__file__).parents[2] / "src/sparkd/data/demo"
AGENT_PID = 4242
VERSION = "0.9.0"
RECORDED_LOG = Path(__file__).parent / "engine/engine-logs/E9-kvsmall.log"
NO_ROOM = "the engine ended: no room is left for one request of the full length (exit 11)"


def serving() -> NodeReport:
    return replace(page_reports.serving(), health=None)


def loading() -> NodeReport:
    """It loads again after a start that a recipe's context was too long for."""
    return replace(
        page_reports.loading(),
        last_cause=NO_ROOM,
        last_hint="lower max-model-len, or raise gpu_memory_utilization if memory is free",
        restarts=(RestartReport("launch-failed", 1, ago(300), NO_ROOM),),
    )


def blocked() -> NodeReport:
    """The worker, on which somebody's notebook has the memory. Its findings are those of preflight."""
    used = MemoryReport(round(121.63 * GIB), 68 * GIB, (43, 44) * 30, 512 << 20, "watching")
    head = node(0, Phase.AWAITING_PEERS, 610, message="waiting for rank 1: blocked", gpu=None)
    own = node(1, Phase.BLOCKED, 605, gpu=None, memory=used)
    return replace(own, peers=(PeerStatus("10.0.0.1", 0, Contact.ANSWERS, ago(610), head),))


def examined(report: NodeReport, shown: PreflightReport) -> NodeReport:
    """The report with what preflight finds on the node, as its agent reports it."""
    judged = [(f.id, f.verdict) for f in shown.findings]
    findings = (FindingReport(name, v.level.value, v.reason, v.hint, v.required) for name, v in judged)
    message = next(f"{name}: {v.reason}" for name, v in judged if v.level is Level.BLOCK)
    return replace(report, findings=tuple(findings), message=message)


def degraded() -> NodeReport:
    """The worker's agent is silent, and the engine answers."""
    report = serving()
    lost = "node spark2 (10.0.0.2) was lost: silent for 20 s"
    (peer,) = report.peers
    gone = replace(peer, contact=Contact.SILENT, since=ago(26), said="no answer within 2 s")
    return replace(
        report,
        phase=Phase.DEGRADED,
        since=ago(6),
        message=f"{lost}; the engine answers",
        peers=(gone,),
        restarts=(),
        last_cause="",
    )


REPORTS = {"serving": serving, "loading": loading, "blocked": blocked, "degraded": degraded}


def versioned(report: NodeReport) -> NodeReport:
    peers = tuple(replace(peer, report=peer.report and versioned(peer.report)) for peer in report.peers)
    versions = {**report.versions, "sparkd": VERSION}
    return replace(report, version=VERSION, versions=versions, pid=AGENT_PID, start_time=100, peers=peers)


def example(state: str, root: Path) -> tuple[Example, datetime]:
    """What the package has of this state, and when it was made; `root` is an empty folder."""
    tree, begun, report, preflight = Tree(root), datetime.now(UTC), REPORTS[state](), list[str | Table]()
    if state == "blocked":
        tree.folder("/dev/shm")
        healthy(tree, 1)
        base.memory(tree, free=64.0, available=68.0, AnonPages=50.0, Cached=5.0)
        notebook = memory.session("app-jupyter-4711.scope")
        tree.process(4711, "python3", cgroup=notebook, private_kib=43_200_000, uid=1000)
        tree.process(AGENT_PID, "sparkd")
        shown = examine_settings(load_settings({}, root), Host(str(root)))
        report, preflight = examined(report, shown), list(parts(shown))
    log = RECORDED_LOG.read_text().splitlines() if state == "loading" else []
    errors = tuple(line for line in log if " ERROR " in line or line.startswith("Runtime"))
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith("SPARKD_")]:  # of the tests, not of the node
            patch.delenv(name)
        served = describe_served(Files(str(root)), report)
    return Example(versioned(report), served, preflight, errors), begun


def encode(made: Example, begun: datetime) -> str:
    """Its file's text. `begun`: when its report was made."""
    return move_stamps(json.format(json.encode(made), indent=1).decode(), WRITTEN - begun) + "\n"


def without_time(text: str) -> str:
    """Its ages were taken some milliseconds one after another."""
    return re.sub(r"\d{4}-\d\d-\d\dT[\d:.]{12}\+00:00", "", text)
