"""Cluster nodes with real agents, on loopback addresses."""

from __future__ import annotations

import errno
import os
import subprocess
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from msgspec.structs import replace
from pydantic import model_validator
from tests.tree import Tree
from tests.unit.clock import unstalled
from tests.unit.docker_server import STAMP
from tests.unit.nodes import KEY, PATIENCE_SECONDS, network
from tests.unit.rank_records import rank_record

from sparkd.agent.actions import Actions
from sparkd.agent.actions.rank_process import Rank
from sparkd.agent.cluster.service import Cluster, join_cluster
from sparkd.agent.daemon.assembly import assemble, equip
from sparkd.agent.daemon.configuration_stamp import stamp_configuration
from sparkd.agent.daemon.context import Agent, Base, Context, Pace
from sparkd.agent.daemon.own_rank import make_compiler_watch
from sparkd.agent.daemon.run import endings
from sparkd.agent.daemon.state_store import StateStore
from sparkd.agent.engine.log_reader import LogReader
from sparkd.agent.engine.rank import Running
from sparkd.base.cluster import membership
from sparkd.base.cluster.membership import NodeContext
from sparkd.base.config import Settings
from sparkd.base.config.settings import Cluster as ClusterSettings
from sparkd.base.config.settings import Engine, Observe, Readiness, Supervise
from sparkd.base.host import Host
from sparkd.base.host.docker import pid_without_live_restore
from sparkd.base.host.owner import NodeOwner
from sparkd.base.lib.dockerd.reader import DockerError
from sparkd.base.lib.endings import Ending, Stage, StopRequested
from sparkd.base.lib.journal_writer import Journal
from sparkd.base.lib.log import Events, ProcessLog
from sparkd.base.lib.main_loop import MainLoop
from sparkd.base.lib.redactor import Redactor
from sparkd.base.lib.systemd import Notifier
from sparkd.base.plan.agreement import Agreement, dump_values
from sparkd.base.state import launch_history
from sparkd.base.state.file import Content, StateFile
from sparkd.base.state.launch_history import End
from sparkd.base.state.rank_record import RANK_FILE
from sparkd.base.status.model import NodeReport
from sparkd.base.vllm.log_lines import LogForwarder

HEAD_KEY = b"h" * 32
"""The private half."""


class EventLines:
    """The events of one agent, as lines."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def info(self, event: str, **fields: object) -> None:
        self.lines.append(" ".join((event, *(f"{key}={value}" for key, value in fields.items()))))

    warning = info
    error = info


class RecordingLog(ProcessLog):
    """A log whose events are kept for the test."""

    def __init__(self, journal: Journal) -> None:
        super().__init__(journal.put)
        self.recorded = EventLines()

    def events(self, redact: Redactor) -> Events:
        return self.recorded


class RecordingNotifier(Notifier):
    up = False
    stops = 0

    def send(self, state: str) -> None:
        self.up = self.up or state == "READY=1"
        self.stops += state == "STOPPING=1"


def addresses(count: int) -> tuple[str, ...]:
    return tuple(f"127.0.0.{number + 1}" for number in range(count))


class LoopbackSettings(Settings):
    """Nodes on loopback, which are refused outside of tests."""

    @model_validator(mode="after")
    def _check_node_addresses(self) -> LoopbackSettings:
        return self


def following(nodes: Sequence[str], port: int, **keys: object) -> Settings:
    """Settings of a worker that follows its head. `keys`: further ones of the section cluster."""
    cluster = ClusterSettings.model_validate({"nodes": list(nodes), "report_port": port, "follow_head": True, **keys})
    return LoopbackSettings.model_construct(
        cluster=cluster, engine=Engine(models_dir="/srv/models"), observe=Observe(listen="")
    )


def settings(
    nodes: Sequence[str],
    port: int,
    *,
    peer_timeout_seconds: int = 20,
    agent_return_seconds: int = 15,
    recipe: str = "tiny-cpu-pair",
    stall_seconds: int = 600,
    ready_seconds: int = 3600,
    api_port: int = 8000,
    api_host: str = "",
) -> Settings:
    """Unchecked: nodes on loopback and short times, which are refused outside of tests."""
    return Settings.model_construct(
        cluster=ClusterSettings(nodes=tuple(nodes), report_port=port),
        engine=Engine(recipe=recipe, args={"host": api_host, "port": api_port}),
        readiness=Readiness.model_construct(stall_seconds=stall_seconds, timeout_seconds=ready_seconds),
        supervise=Supervise(peer_timeout_seconds=peer_timeout_seconds, agent_return_seconds=agent_return_seconds),
        observe=Observe(listen=""),
    )


def alone() -> Settings:
    """Settings of a single node: its agent opens no port, and ends without a wait for readers."""
    return settings((), 1, recipe="tiny-cpu")


def public_half(private: bytes) -> bytes:
    return Ed25519PrivateKey.from_private_bytes(private).public_key().public_bytes_raw()


def machine(tree: Tree, rank: int, *, keys: Sequence[bytes] = (KEY,)) -> Host:
    """The machine of one node: the address of its rank, the key files."""
    below = Tree(tree.root / f"node{rank}")
    below.file("/proc/net/fib_trie", f"     |-- 127.0.0.{rank + 1}\n        /32 host LOCAL\n")
    head = "Iface\tDestination\tGateway\tFlags\tRefCnt\tUse\tMetric\tMask\tMTU\tWindow\tIRTT\n"
    below.file("/proc/net/route", f"{head}bond0\t0000007F\t00000000\t0001\t0\t0\t0\t000000FF\t0\t0\t0\n")
    below.file("/proc/sys/kernel/hostname", f"spark{rank + 1}\n")
    below.file("/proc/self/stat", "")
    below.file("/proc/sys/kernel/random/boot_id", "boot\n")
    below.meminfo(MemTotal=120, MemFree=110, MemAvailable=110)
    below.file("/etc/sparkd/cluster.key", "".join(f"{key.hex()}\n" for key in keys), 0o600)
    name, half = ("head.pub", public_half(HEAD_KEY)) if rank else ("head.key", HEAD_KEY)
    below.file(f"/etc/sparkd/{name}", f"{half.hex()}\n", 0o600)
    return Host(below.root, owner_uid=os.getuid())


def context(configured: Settings, host: Host) -> NodeContext:
    return membership.resolve_context(configured, None, host)


@contextmanager
def joined(node: NodeContext, host: Host) -> Iterator[Cluster]:
    """One node of the cluster, until its agent ends."""
    with network() as loop:
        own, configured, log = node.plan.node, node.settings, EventLines()
        cluster = join_cluster(own, configured, host, lambda: None, loop.spawn, log)
        yield replace(cluster, sinks=tuple(partial(loop.call, sink) for sink in cluster.sinks))


class MemoryActions(Actions):
    """Keeps what would be written, and starts nothing."""

    def __init__(self, host: Host, loop: MainLoop, invocation: str) -> None:
        super().__init__(host, loop, NodeOwner(os.getpid(), "a test", invocation), -1)
        self.written: dict[str, str] = {}

    def write_state(self, name: str, text: str, mode: int) -> None:  # as the real ones
        self.written[name] = text

    def write_run(self, name: str, text: str) -> None:
        self.written[name] = text

    def require_run_room(self) -> None:
        """There is."""

    def write_private(self, path: str, text: str) -> None:
        if path == RANK_FILE.path:
            self.written["rank.json"] = RANK_FILE.decode(text.encode()).stage.value
        else:
            super().write_private(path, text)

    def forget_rank(self) -> None:
        self.written.pop("rank.json", None)

    def remove(self, rank: Rank) -> bool:
        self.written["removed"] = rank.name
        return True


def written(actions: Actions, file: StateFile[Content]) -> Content:
    """This file, as such an agent would have it on its disk."""
    assert isinstance(actions, MemoryActions)
    return file.decode(actions.written[file.name].encode())


def last_exit(actions: Actions) -> End:
    end = written(actions, launch_history.FILE).last_exit
    assert end is not None
    return end


class FullDisk(MemoryActions):
    """There is no room on its disk while `is_full`."""

    is_full = True

    def write_state(self, name: str, text: str, mode: int) -> None:
        self._require_room()
        super().write_state(name, text, mode)

    def compare_and_swap(self, file: StateFile[Content], before: Content | None, after: Content | None) -> bool:
        self._require_room()
        return super().compare_and_swap(file, before, after)

    def _require_room(self) -> None:
        if self.is_full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


BRIEF = Pace(last_report_seconds=0.0)
"""The pace of an agent whose last report no other agent reads."""


@dataclass
class AgentUnderTest:
    """A real agent, except for its docker and systemd."""

    agent: Agent
    events: EventLines
    notifier: RecordingNotifier
    journal: Path
    ended: threading.Event = field(default_factory=threading.Event)

    def raise_if_ended(self) -> None:
        """Lets the test stop the agent."""
        if self.ended.is_set():
            raise StopRequested("the test is over")

    def set_plan(self, digest: str, **values: str) -> None:
        """Set the plan as the step `fingerprint` does."""
        self.agent.agreed.forget()
        self.agent.agreed.keep(Agreement(values, digest))
        self.agent.cluster.publish("/plan", dump_values(values))
        self.agent.reporter.update(plan_digest=digest)

    def remake(self, **changes: object) -> Agent:
        """The same agent, built once more of other values."""
        values = {name: getattr(self.agent, name) for name in Context.__struct_fields__}
        values.update(changes)
        store = StateStore(self.agent.host, values["actions"], self.agent.loop, self.agent.events)
        self.agent = equip(Context(**{**values, "store": store}))
        self.watch()
        return self.agent

    def watch(self) -> None:
        """Let its run end as a real one, and with the test."""
        self.agent.loop.endings.end_by(Ending(self.raise_if_ended, until=Stage.CLOSING), *endings(self.agent))

    def end(self) -> None:
        self.ended.set()
        self.agent.loop.wake()

    @property
    def report(self) -> NodeReport:
        return self.agent.reporter.report


@contextmanager
def base_under_test(tree: Tree, rank: int, configured: Settings, incarnation: str = "") -> Iterator[Base]:
    """An agent that has not found its place."""
    host = machine(tree, rank)
    path = tree.root / f"journal{rank}"
    notifier = RecordingNotifier()
    with path.open("wb") as file, MainLoop(notifier, {}) as main:
        actions = MemoryActions(host, main, incarnation or f"incarnation-{rank}")
        journal = Journal(file.fileno())
        log = RecordingLog(journal)
        try:
            role, stamp = "worker" if rank else "head", stamp_configuration(host.files.root)
            process = (role, host, actions.owner, main, notifier, journal, log, stamp)
            yield Base(*process, settings=configured, actions=actions)
        finally:
            journal.close(1)


@contextmanager
def agent_under_test(tree: Tree, rank: int, configured: Settings, incarnation: str = "") -> Iterator[AgentUnderTest]:
    """The agent of one node, with its port and its readers open."""
    with base_under_test(tree, rank, configured, incarnation) as base:
        assert isinstance(base.log, RecordingLog) and isinstance(base.notifier, RecordingNotifier)
        agent = assemble(base, context(configured, base.host))
        made = AgentUnderTest(agent, base.log.recorded, base.notifier, tree.root / f"journal{rank}")
        made.watch()
        agent.reporter.publish()
        try:
            yield made
        finally:
            made.end()


def until_with(true: Callable[[], object], *agents: AgentUnderTest, seconds: float = PATIENCE_SECONDS) -> None:
    """Until it is true, while these agents, which no thread runs, answer."""
    began = unstalled()
    while not true():
        assert unstalled() - began < seconds, "it never came true"
        for node in agents:
            node.agent.loop.wait_until(lambda: bool(true()), 0.01, shielded=True)


@contextmanager
def running(
    agent: Agent,
    *lines: str,
    command: Sequence[str] = ("sleep", "60"),
    docker_goes: bool = False,
    log_comes: Callable[[], object] = lambda: None,
) -> Iterator[tuple[Running, subprocess.Popen[bytes]]]:
    """A rank that is a process of the test, and these log lines, once `log_comes`; then the log ends, or docker."""

    def follow(_since: str) -> Iterator[tuple[int, bytes]]:
        log_comes()
        yield 1, STAMP + "".join(f"{line}\n" for line in lines).encode()
        if docker_goes:
            raise DockerError("docker is away")

    with subprocess.Popen(command) as process:
        rank = Rank("c" * 64, "sparkd-rank1", "sha256:i", process.pid, os.pidfd_open(process.pid))
        rank.watch(agent.loop)
        log = LogReader(follow, LogForwarder(Redactor(), "-"), agent.journal.put, agent.events, agent.loop.wake)
        log.start()
        record = rank_record(rank_id=agent.rank_id, dockerd_pid=pid_without_live_restore(agent.host))
        keep, watch = partial(agent.store.write_private, RANK_FILE), make_compiler_watch(agent, rank)
        made = Running(rank, log, record, keep, agent.host, agent.loop, watch)
        agent.rank.take(made)
        try:
            yield made, process
        finally:
            process.kill()
            log.stop(0)
