"""The agent: what every step of a node's life has in hand."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

from sparkd import __version__
from sparkd.engine.story import Story
from sparkd.hands import STATE, Hands
from sparkd.host import Host
from sparkd.host.processes import parse_stat
from sparkd.journal import Journal
from sparkd.launch import ledger
from sparkd.launch.ledger import Ledger
from sparkd.launch.plan import LaunchPlan
from sparkd.log import Events, Redactor
from sparkd.pulse import Pulse
from sparkd.report.node_report import EngineReport, MemoryReport, NodeReport, Phase
from sparkd.report.reporter import Reporter
from sparkd.roles import NodeContext
from sparkd.settings import Settings
from sparkd.systemd import Notifier

LEDGER_FILE = "launches.json"
LAST_EXIT_FILE = "last-exit.json"


@dataclass
class Agent:
    """One process, one launch. Made by `commands.run`; its life is told in `life`."""

    settings: Settings
    context: NodeContext
    host: Host
    hands: Hands
    pulse: Pulse
    notifier: Notifier
    journal: Journal
    events: Events
    redact: Redactor
    reporter: Reporter
    boot_id: str
    api_key: str | None
    """What the endpoint wants from who asks; None where it wants none."""
    unkept: set[str] = field(default_factory=set)
    """Files of state that could not be written last time."""

    @property
    def plan(self) -> LaunchPlan:
        return self.context.plan

    def phase(self, phase: Phase, message: str = "") -> None:
        """Enter a phase, or say something new of the one at hand."""
        changed = phase is not self.reporter.report.phase
        self.reporter.update(phase=phase, message=message, memory=self._memory())
        if changed:
            ended = phase in (Phase.BLOCKED, Phase.FAILED)  # told once already, with its reason
            self.events.info("life.phase.changed", phase=phase.value, message="" if ended else message)

    def _memory(self) -> MemoryReport | None:
        try:
            info = self.host.meminfo()
        except (OSError, ValueError):
            return None
        return MemoryReport(info.total_bytes, info.available_bytes)

    def wait(self, seconds: float, message: str) -> None:
        """Wait for something that comes by itself, saying for what."""
        self.reporter.update(message=message)
        self.pulse.wait(seconds)

    def show(self, story: Story, waiting_for: str = "") -> None:
        """The engine's story into the report, at the pace of its steps and of its counts."""
        now = time.monotonic()
        left = story.seconds_left(now)
        engine = replace(
            self.reporter.report.engine,
            phase=story.step,
            progress=round(story.done / story.total, 3) if story.total else None,
            seconds_left=round(left) if left is not None else None,
            kv_cache_tokens=story.kv_cache_tokens,
        )
        self.reporter.update(engine=engine, message=_describe(story, engine, waiting_for))

    def launches(self) -> Ledger:
        """The ledger as it stands on disk: who removes the file begins at zero."""
        try:
            return ledger.parse(self.host.files.text(str(STATE / LEDGER_FILE)))
        except OSError:
            return Ledger()

    def remember(self, launches: Ledger) -> bool:
        """Keep the ledger over crashes and power cuts; whether that worked."""
        return self.keep(LEDGER_FILE, ledger.dump(launches))

    def keep(self, name: str, text: str) -> bool:
        """Write a file of state; whether that worked. A full disk is told once, and is no reason to end an engine."""
        try:
            self.hands.write_state(name, text)
        except OSError as error:
            if name not in self.unkept:
                self.events.error("state.write.failed", file=name, reason=str(error), hint="df -h /var/lib/sparkd")
            self.unkept.add(name)
            return False
        self.unkept.discard(name)
        return True


def _describe(story: Story, engine: EngineReport, waiting_for: str) -> str:
    count = f" {story.done}/{story.total}" if story.total else ""
    left = f", about {engine.seconds_left} s left" if engine.seconds_left else ""
    cache = f", KV cache {story.kv_cache_tokens:,} tokens" if story.kv_cache_tokens else ""
    waiting = f"; waiting for {waiting_for}" if waiting_for else ""
    return f"{story.step}{count}{left}{cache}{waiting}"


def utc_now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def new_report(context: NodeContext, host: Host, invocation: str, last_cause: str) -> NodeReport:
    """The report that a life begins with."""
    agent = parse_stat(host.files.bytes("/proc/self/stat"))
    return NodeReport(
        node=host.name(),
        role=context.role,
        rank=context.rank,
        phase=Phase.PREFLIGHT,
        since=utc_now(),
        epoch=invocation,
        incarnation=invocation,
        version=__version__,
        plan_digest=context.plan.digest,
        last_cause=last_cause,
        pid=os.getpid(),
        start_time=agent.start_time if agent else 0,
    )
