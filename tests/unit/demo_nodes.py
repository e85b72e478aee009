"""The examples of `sparkd demo`, as src/sparkd/data/demo has them: the reports of the page's tests, and a tree."""

import re
from datetime import UTC, datetime
from pathlib import Path

from msgspec import json
from msgspec.structs import replace
from tests.machines.areas import base, healthy, memory
from tests.tree import Tree
from tests.unit import page_reports
from tests.unit.page_reports import GIB, ago, node

from sparkd.agent.preflight.check import Level
from sparkd.base.config import load_settings
from sparkd.base.host import Host
from sparkd.base.status.model import (
    PATH,
    Contact,
    FindingReport,
    MemoryReport,
    NodeReport,
    PeerStatus,
    Phase,
    RestartReport,
    dump,
)
from sparkd.tools.cli.demo import ENGINE_LOG, WRITTEN, Example, move_stamps
from sparkd.tools.node.dry_run import look_at

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


def examined(report: NodeReport, root: Path) -> NodeReport:
    """The report with what preflight finds on the node below `root`, as its agent reports it."""
    judged = [(f.id, f.verdict) for f in look_at(load_settings({}, root), Host(str(root))).findings]
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


def example(state: str, root: Path) -> Example:
    """What the package has of this state; `root` is an empty folder."""
    tree = Tree(root)
    if state == "blocked":
        tree.folder("/dev/shm")
        healthy(tree, 1)
        base.memory(tree, free=64.0, available=68.0, AnonPages=50.0, Cached=5.0)
        notebook = memory.session("app-jupyter-4711.scope")
        tree.process(4711, "python3", cgroup=notebook, private_kib=43_200_000, uid=1000)
    tree.process(AGENT_PID, "sparkd")
    if state == "loading":
        lines = [
            line for line in RECORDED_LOG.read_text().splitlines() if " ERROR " in line or line.startswith("Runtime")
        ]
        tree.file(ENGINE_LOG, "\n".join(lines) + "\n")
    begun = datetime.now(UTC)
    report = REPORTS[state]()
    report = examined(report, root) if state == "blocked" else report
    text = move_stamps(dump(versioned(report)), WRITTEN - begun)
    tree.file(PATH, text)
    return read_tree(root)


def read_tree(root: Path) -> Example:
    paths = sorted(root.rglob("*"))
    named = {path: f"/{path.relative_to(root)}" for path in paths}
    files = [path for path in paths if path.is_file() and not path.is_symlink()]
    content = {path: path.open("rb").read(1 << 16).rstrip(b"\0") for path in files}
    return Example(
        files={named[path]: content[path].decode("latin-1") for path in files},
        sizes={named[path]: path.stat().st_size for path in files if path.stat().st_size > len(content[path])},
        links={named[path]: str(path.readlink()) for path in paths if path.is_symlink()},
        folders=tuple(named[path] for path in paths if path.is_dir() and not path.is_symlink()),
        programs=tuple(named[path] for path in files if path.stat().st_mode & 0o111),
    )


def encode(made: Example) -> str:
    return json.format(json.encode(made), indent=1).decode() + "\n"


def without_time(text: str) -> str:
    """Its ages were taken some milliseconds one after another."""
    return re.sub(r"\d{4}-\d\d-\d\dT[\d:.]{12}\+00:00", "", text)
