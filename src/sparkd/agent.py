"""The agent: what every step of a node's life has in hand."""

from __future__ import annotations

import time
from collections.abc import Callable

from msgspec import Struct, field
from msgspec.structs import replace

from sparkd.engine.story import Story
from sparkd.hands import STATE, Hands
from sparkd.host import Host, boots
from sparkd.host.boots import Boots
from sparkd.launch import agreement, ledger
from sparkd.launch.agreement import Agreement
from sparkd.launch.ledger import Ledger
from sparkd.launch.plan import LaunchPlan
from sparkd.lib.journal import Journal
from sparkd.lib.log import Events, ProcessLog
from sparkd.lib.redact import Redactor
from sparkd.peers.snapshot import Snapshot
from sparkd.pulse import Pulse
from sparkd.report.exchange import Exchange
from sparkd.report.node_report import EngineReport, MemoryReport, Phase
from sparkd.report.reporter import Reporter
from sparkd.roles import NodeContext
from sparkd.settings import Settings
from sparkd.systemd import Notifier
from sparkd.together import Together

LEDGER_FILE = "launches.json"
BOOTS_FILE = "boots.json"


class Agent(Struct):
    """One process, one launch. Made by `commands.run`; its life is told in `life`."""

    settings: Settings
    context: NodeContext
    host: Host
    hands: Hands
    pulse: Pulse
    notifier: Notifier
    journal: Journal
    log: ProcessLog
    events: Events
    redact: Redactor
    reporter: Reporter
    together: Together
    boot_id: str
    api_key: str | None
    """What the endpoint wants from who asks; None where it wants none."""
    failed_in: Phase | None = None
    """The phase that a failure has ended. It may be told to the other nodes before this one knows whose it is."""
    unkept: set[str] = field(default_factory=set)
    """Files of state that could not be written last time."""
    exchange: Exchange | None = None
    """What the other nodes read; None where there are none."""
    agreement: Agreement = field(default_factory=lambda: Agreement({}, ""))
    """What all ranks must share, once it has been looked at."""
    proven: bool = False
    """Whether the plan has served for long enough in this life."""

    @property
    def plan(self) -> LaunchPlan:
        return self.context.plan

    @property
    def incarnation(self) -> str:
        """Of this life; a head's epoch has the same name."""
        return self.hands.owner.invocation

    def phase(self, phase: Phase, message: str = "") -> None:
        """Enter a phase, or say something new of the one at hand."""
        before = self.reporter.report.phase
        ended = phase in (Phase.BLOCKED, Phase.FAILED)
        if ended and self.failed_in is None:
            self.failed_in = before
        self.reporter.update(phase=phase, message=message, memory=self._memory())
        if phase is not before:
            # A failure is told once already, with its reason.
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
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0:  # the bell rings for other things too
            self.pulse.wait(left)

    def join_epoch(self, epoch: str) -> None:
        """`epoch`: the head's incarnation, which the ranks of all nodes start in."""
        self.log.bind(epoch=epoch)
        self.reporter.update(epoch=epoch)

    def offer(self, found: Agreement) -> None:
        """Let the other nodes read what this one's rank is made of, to name what differs."""
        if self.exchange is not None:
            self.exchange.values = agreement.dump(found.values)

    def stands_by(self) -> None:
        """A worker is up for systemd once its node has passed preflight: the rest is the head's to begin."""
        if self.pulse.extending:
            self.notifier.ready()
            self.pulse.extending = False

    def meet(self, seen: tuple[Snapshot, ...]) -> None:
        """The other nodes into the report; a change of contact into the journal."""
        before = {one.rank: one.contact for one in self.reporter.report.peers}
        self.reporter.update(peers=tuple(one.as_peer() for one in seen))
        for one in seen:
            if before.get(one.rank) not in (None, one.contact):
                self.events.info("peers.contact.changed", node=one.name, contact=one.contact.value, said=one.said)

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
        self.reporter.update(engine=engine, message=_describe(story, engine, waiting_for), memory=self._memory())

    def launches(self) -> Ledger:
        """The ledger as it stands on disk: who removes the file begins at zero."""
        try:
            return ledger.parse(self.host.files.text(str(STATE / LEDGER_FILE)))
        except OSError:
            return Ledger()

    def remember(self, launches: Ledger) -> bool:
        """Keep the ledger over crashes and power cuts; whether that worked."""
        return self.keep(LEDGER_FILE, ledger.dump(launches))

    def record(self, change: Callable[[Boots], Boots]) -> None:
        """Keep how far this boot's launch has come, for the next boot to read."""
        try:
            before = boots.read(self.host.files)
        except OSError:
            before = Boots()
        after = change(before)
        if after != before:
            self.keep(BOOTS_FILE, boots.dump(after))

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

    def forget(self, name: str) -> bool:
        """Remove a file of state; whether there was one to remove."""
        try:
            return self.hands.remove_state(name)
        except OSError as error:
            self.events.error("state.remove.failed", file=name, reason=str(error))
            return False


def _describe(story: Story, engine: EngineReport, waiting_for: str) -> str:
    count = f" {story.done}/{story.total}" if story.total else ""
    left = f", about {engine.seconds_left} s left" if engine.seconds_left else ""
    cache = f", KV cache {story.kv_cache_tokens:,} tokens" if story.kv_cache_tokens else ""
    waiting = f"; waiting for {waiting_for}" if waiting_for else ""
    return f"{story.step}{count}{left}{cache}{waiting}"
