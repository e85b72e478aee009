"""One node of a simulated cluster: what an agent runs for the others, and nothing else.

node.py NODES RANK KEY_FILE FOLDER     one word a line in, one line of JSON out for each; ends with its input

join     serve the own report and read the others'      load     a change of progress each second, from now on
mark     what it took so far, and whom it hears         still    no more changes
news     change phase now                               seen     when it published which message, and when it saw which

Each has an address of 127/8 of its own. The settings end at eight nodes; a simulation has no such limit.
"""

from __future__ import annotations

import json
import os
import re
import sys
import threading
import time
from pathlib import Path

from msgspec.structs import replace

import sparkd.agent.daemon.run  # noqa: F401 - the memory that an agent has before it has peers
from sparkd.agent.actions import files
from sparkd.agent.cluster.monitor import PeerMonitor
from sparkd.agent.cluster.service import join_cluster
from sparkd.agent.daemon.assembly import initial_status
from sparkd.base.cluster.membership import NodeContext, node_of_rank
from sparkd.base.config import Settings
from sparkd.base.host import Host
from sparkd.base.lib.endings import Ending
from sparkd.base.lib.log import events
from sparkd.base.lib.main_loop import MainLoop
from sparkd.base.lib.redaction import Redaction
from sparkd.base.lib.systemd import Notifier
from sparkd.base.plan.build import make_plan
from sparkd.base.recipes.loader import load_recipe
from sparkd.base.status.figures import ActivityReport, GpuReport
from sparkd.base.status.model import (
    IN_SERVICE,
    Contact,
    FindingReport,
    MemoryReport,
    NodeReport,
    PeerStatus,
    Phase,
    dump,
    parse,
)
from sparkd.base.status.publisher import Published, Reporter, status_line

RECIPES = (Path(__file__).parents[3] / "config/recipes",)
STILL_SECONDS = 5.0
"""As an agent looks at its serving engine."""
PACE_SECONDS = 1.02
"""Just over what the reporter allows, so that every change is published at once."""
CHECKS = ("script-paths", "stray-workers", "shared-memory", "page-cache", "unified-memory")
GIB = 1 << 30
_PSS = re.compile(r"^Pss:\s+(\d+) kB$", re.MULTILINE)


def address(rank: int) -> str:
    return f"127.0.{1 + rank // 250}.{1 + rank % 250}"


def context(nodes: int, rank: int, key_file: str) -> NodeContext:
    plain = Settings()
    cluster = plain.cluster.model_copy(update={"nodes": tuple(map(address, range(nodes))), "key_file": key_file})
    settings = plain.model_copy(update={"cluster": cluster})  # unlike the constructor, it does not check
    node = node_of_rank(settings, rank)
    recipe = load_recipe("tiny-cpu-pair", RECIPES).recipe
    plan = make_plan(recipe, plain, replace(node, cluster_size=2, interface="lo"))
    return NodeContext(replace(plan, node=node), settings, recipe, settings)


def usual(report: NodeReport, findings: int = len(CHECKS)) -> NodeReport:
    """As long as the report of a node that loads."""
    reports = tuple(
        FindingReport(CHECKS[n % len(CHECKS)], "ok", f"{60 + n}.1 GiB available, 48.0 GiB needed", "stop other work")
        for n in range(findings)
    )
    versions = {"sparkd": report.version, "driver": "580.95.05", "kernel": "6.11.0-1016-nvidia", "docker": "29.0.4"}
    engine = replace(report.engine, container_id="c" * 64, image=f"sha256:{'d' * 64}", phase="loading weights")
    memory = MemoryReport(120 * GIB, 60 * GIB)
    return replace(
        report,
        plan_digest="e" * 64,
        versions=versions,
        findings=reports,
        engine=engine,
        memory=memory,
        phase=Phase.LOADING,
    )


class Node:
    def __init__(self, place: NodeContext, folder: Path) -> None:
        self._place = place
        self._host, self._redact = Host(), Redaction()
        self._notifier = Notifier()
        self._loop = MainLoop(self._notifier, {})
        self._log = events(lambda _, text: print(text, file=sys.stderr, flush=True), self._redact)
        self._file = folder / f"report-{place.rank}.json"
        first = usual(initial_status(place, self._host, os.urandom(16).hex()))
        parse(dump(first))  # what reading takes in memory is no peer's
        self._reporter = Reporter(first, (self._to_file,), self._redact)
        self._loading = False
        self._due = 0.0
        self._count = 0
        self._published: dict[str, float] = {}
        self._seen: dict[str, float] = {}
        self._known: dict[int, str] = {}
        """The last message seen, by rank; this node's own is the last one published."""

    def live(self) -> None:
        """The main loop of an agent: it waits, reads the others, and publishes its own status."""
        buffer, readable = b"", threading.Event()
        self._loop.watch_exit(sys.stdin.fileno(), readable.set)  # it watches for one thing to read
        while True:
            seconds = max(0.0, self._due - time.monotonic()) if self._loading else STILL_SECONDS
            self._loop.wait(seconds)
            if readable.is_set():
                readable.clear()
                data = os.read(sys.stdin.fileno(), 4096)
                if not data:
                    return
                *lines, buffer = (buffer + data).split(b"\n")
                for line in lines:
                    print(json.dumps(self._answer(line.decode())), flush=True)
                self._loop.watch_exit(sys.stdin.fileno(), readable.set)
            if self._loading and time.monotonic() >= self._due:
                self._due += PACE_SECONDS
                self._change(Phase.LOADING)
            elif not self._loading:
                self._change_figures()

    def _answer(self, word: str) -> dict[str, object]:
        match word:
            case "join":
                self._join()
            case "load":
                # Real nodes are not in step: each begins at its own part of a second.
                self._due = time.monotonic() + PACE_SECONDS * ((self._place.rank * 0.618) % 1)
                self._loading = True
            case "still":
                self._loading = False
                self._change(Phase.SERVING)
            case "news":
                serves = self._reporter.report.phase is Phase.SERVING
                self._change(Phase.DEGRADED if serves else Phase.SERVING)
            case "seen":
                answer: dict[str, object] = {"published": self._published, "seen": self._seen}
                self._published, self._seen = {}, {}
                return answer
        return self._mark()

    def _mark(self) -> dict[str, object]:
        found = _PSS.search(Path("/proc/self/smaps_rollup").read_text())
        assert found is not None
        peers = self._reporter.report.peers
        hears = sum(one.contact is Contact.ANSWERS for one in peers)
        return {"at": time.monotonic(), "cpu": time.process_time(), "pss": int(found[1]), "hears": hears}

    def _join(self) -> None:
        cluster = join_cluster(
            self._place.plan.node, self._place.settings, self._host, self._loop.wake, self._loop.spawn, self._log
        )
        sinks = (self._to_file, self._to_systemd, self._stamp, *cluster.sinks)
        self._reporter = Reporter(self._reporter.report, sinks, self._redact)
        timeout_seconds = self._place.settings.supervise.peer_timeout_seconds
        monitor = PeerMonitor(cluster.readers, self._loop.start, timeout_seconds, on_check=self._meet)
        self._loop.endings.end_by(Ending(monitor.check))
        self._reporter.publish()

    def _change(self, phase: Phase) -> None:
        self._count += 1
        message = f"rank {self._place.rank}: loading weights {self._count}/46, about 120 s left"
        self._reporter.update(phase=phase, message=message)

    def _change_figures(self) -> None:
        """As under load: the head's activity at each look at its engine, each GPU's reading every half a minute."""
        report = self._reporter.report
        if report.phase not in IN_SERVICE:
            return
        self._count += 1
        busy = ActivityReport(self._count % 8, 0, 300.5 + self._count, 40.5 + self._count, 0.4, 0.8, 0.7)
        gpu = GpuReport("NVIDIA GB10", 2400, 60 + self._count // 6 % 8, 70, 96)
        memory = MemoryReport(120 * GIB, 60 * GIB - self._count)
        self._reporter.update(activity=busy if report.rank == 0 else None, gpu=gpu, memory=memory)

    def _meet(self, peers: tuple[PeerStatus, ...]) -> None:
        now = time.monotonic()
        for peer in peers:
            if peer.report is not None and self._is_new(peer.report):
                self._seen[peer.report.message] = now
        self._reporter.update(peers=peers)

    def _to_file(self, published: Published) -> None:
        files.write(self._file, published.text, 0o644, durable=False)

    def _to_systemd(self, published: Published) -> None:
        self._notifier.status(status_line(published.report))

    def _stamp(self, published: Published) -> None:
        if self._is_new(published.report):
            self._published[published.report.message] = time.monotonic()

    def _is_new(self, report: NodeReport) -> bool:
        known = self._known.get(report.rank)
        self._known[report.rank] = report.message
        return known != report.message


if __name__ == "__main__":
    nodes, rank, key_file, folder = sys.argv[1:]
    node = Node(context(int(nodes), int(rank), key_file), Path(folder))
    print("{}", flush=True)
    node.live()
