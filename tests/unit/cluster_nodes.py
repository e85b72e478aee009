"""Nodes of a cluster as agents make them, on addresses of loopback: settings, key file, server and readers."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tests.tree import Tree
from tests.unit.nodes import KEY, loop_thread

from sparkd import roles
from sparkd.agent import Agent
from sparkd.cluster import Cluster, join
from sparkd.engine.forward import Forwarder
from sparkd.engine.log_reader import LogReader
from sparkd.first_report import first_report
from sparkd.hands import STATE, Hands
from sparkd.hands.lock import Owner
from sparkd.hands.rank import Rank
from sparkd.host import Host
from sparkd.host.http import Unanswered
from sparkd.journal import Journal
from sparkd.launch.agreement import Agreement
from sparkd.launch.start import Running
from sparkd.log import Redactor
from sparkd.pulse import Pulse, StopRequested
from sparkd.report.node_report import NodeReport
from sparkd.report.reporter import Reporter
from sparkd.roles import NodeContext
from sparkd.settings import Settings
from sparkd.settings.model import Cluster as ClusterSettings
from sparkd.settings.model import Engine, Supervise
from sparkd.systemd import Notifier


class Told:
    """The events of one agent, as lines."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def info(self, event: str, **fields: object) -> None:
        self.lines.append(" ".join((event, *(f"{key}={value}" for key, value in fields.items()))))

    warning = info
    error = info


def addresses(count: int) -> tuple[str, ...]:
    return tuple(f"127.0.0.{number + 1}" for number in range(count))


def free_port() -> int:
    """Free on all addresses of loopback."""
    with socket.socket() as probe:
        probe.bind(("0.0.0.0", 0))
        port: int = probe.getsockname()[1]
        return port


def settings(
    nodes: Sequence[str], port: int, *, peer_timeout_seconds: int = 20, recipe: str = "tiny-cpu-pair"
) -> Settings:
    """As checked, but for nodes on loopback and for times too short, which are refused outside of tests."""
    return Settings.model_construct(
        cluster=ClusterSettings(nodes=tuple(nodes), report_port=port),
        engine=Engine(recipe=recipe),
        supervise=Supervise(peer_timeout_seconds=peer_timeout_seconds),
    )


def alone() -> Settings:
    """Of a node without others: nobody waits for its last report."""
    return settings((), free_port(), recipe="tiny-cpu")


def machine(tree: Tree, rank: int, *, keys: Sequence[bytes] = (KEY,)) -> Host:
    """Of one node: the address of its rank, the key file, the recipes of this checkout."""
    below = Tree(tree.root / f"node{rank}")
    below.file("/proc/net/fib_trie", f"     |-- 127.0.0.{rank + 1}\n        /32 host LOCAL\n")
    head = "Iface\tDestination\tGateway\tFlags\tRefCnt\tUse\tMetric\tMask\tMTU\tWindow\tIRTT\n"
    below.file("/proc/net/route", f"{head}bond0\t0000007F\t00000000\t0001\t0\t0\t0\t000000FF\t0\t0\t0\n")
    below.file("/proc/sys/kernel/hostname", f"spark{rank + 1}\n")
    below.file("/proc/self/stat", "")
    below.meminfo(MemTotal=120, MemFree=110, MemAvailable=110)
    below.file("/etc/sparkd/cluster.key", "".join(f"{key.hex()}\n" for key in keys), 0o600)
    recipes = below.root / "usr/share/sparkd/recipes"
    if not recipes.exists():
        shutil.copytree(Path(__file__).parents[2] / "config/recipes", recipes)
    return Host(below.root)


def context(configured: Settings, host: Host) -> NodeContext:
    return roles.context(configured, None, host)


@contextmanager
def joined(node: NodeContext, host: Host, pulse: Pulse | None = None, told: Told | None = None) -> Iterator[Cluster]:
    """One node of the cluster, until its agent ends."""
    with loop_thread() as loop:
        beat = pulse or Pulse(Notifier(), {})
        cluster = join(node, host, beat, loop, Redactor(), told or Told(), owner_uid=os.getuid())
        try:
            yield cluster
        finally:
            cluster.together.peers.stop()
            if cluster.server is not None:
                cluster.server.close()


class MemoryHands(Hands):
    """Keeps what would be written, and starts nothing."""

    def __init__(self, host: Host, pulse: Pulse, invocation: str) -> None:
        super().__init__(host, pulse, Owner(os.getpid(), "a test", invocation), -1)
        self.written: dict[str, str] = {}

    def write_state(self, name: str, text: str) -> None:
        self.written[name] = text

    def remove_state(self, name: str) -> bool:
        self.written[name] = ""
        return self._host.files.exists(str(STATE / name))

    def write_run(self, name: str, text: str) -> None:
        self.written[name] = text

    def remove(self, rank: Rank) -> None:
        self.written["removed"] = rank.name


@dataclass
class Life:
    """An agent of a test: all but its docker and its systemd is real."""

    agent: Agent
    told: Told
    journal: Path
    cluster: Cluster
    ended: threading.Event = field(default_factory=threading.Event)

    def watched(self) -> object:
        """The guard of an agent; and the test's own way to stop it."""
        if self.ended.is_set():
            raise StopRequested("the test is over")
        return self.agent.together.look()

    def surveyed(self, digest: str, **values: str) -> None:
        """As the step of that name does."""
        self.agent.agreement = Agreement(values, digest)
        self.agent.offer(self.agent.agreement)
        self.agent.reporter.update(plan_digest=digest)

    def end(self) -> None:
        self.ended.set()
        self.agent.pulse.ring()

    @property
    def report(self) -> NodeReport:
        return self.agent.reporter.report


@contextmanager
def life(tree: Tree, rank: int, configured: Settings, incarnation: str = "") -> Iterator[Life]:
    """The agent of one node, with its port and its readers open."""
    host = machine(tree, rank)
    node = context(configured, host)
    pulse, told = Pulse(Notifier(), {}), Told()
    hands = MemoryHands(host, pulse, incarnation or f"life-of-{rank}")
    path = tree.root / f"journal{rank}"
    with path.open("wb") as file, joined(node, host, pulse, told) as cluster:
        journal = Journal(file.fileno())
        first = first_report(node, host, hands.owner.invocation, "")
        agent = Agent(
            settings=configured,
            context=node,
            host=host,
            hands=hands,
            pulse=pulse,
            notifier=Notifier(),
            journal=journal,
            events=told,
            redact=Redactor(),
            reporter=Reporter(first, cluster.sinks),
            together=cluster.together,
            exchange=cluster.exchange,
            boot_id="boot",
            api_key=None,
        )
        made = Life(agent, told, path, cluster)
        agent.together.show = agent.meet
        pulse.guard = made.watched
        agent.reporter.tell()
        try:
            yield made
        finally:
            made.end()
            journal.close(1)


@contextmanager
def running(
    agent: Agent, *lines: str, command: Sequence[str] = ("sleep", "60"), docker_goes: bool = False
) -> Iterator[tuple[Running, subprocess.Popen[bytes]]]:
    """A rank that is a process of the test's own, and what its log says until it ends, or docker does."""

    def follow(_since: float) -> Iterator[tuple[int, bytes]]:
        yield 1, "".join(f"{line}\n" for line in lines).encode()
        if docker_goes:
            raise Unanswered("docker is away")

    with subprocess.Popen(command) as process:
        rank = Rank("c" * 64, "sparkd-rank1", "sha256:i", process.pid, os.pidfd_open(process.pid))
        log = LogReader(follow, Forwarder(Redactor(), "-"), agent.journal.put, agent.events, agent.pulse.ring)
        log.start()
        try:
            yield Running(rank, log, time.monotonic()), process
        finally:
            process.kill()
            log.stop(0)
