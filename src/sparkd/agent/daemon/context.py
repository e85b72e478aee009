"""The frozen context that every step of an agent uses: values, and objects that own their state, such as the rank."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, TypeVar

from msgspec import Struct

from sparkd.agent.actions import Actions
from sparkd.agent.cluster.monitor import PeerMonitor
from sparkd.agent.cluster.service import Cluster
from sparkd.agent.daemon.state_store import StateStore
from sparkd.agent.engine.rank import Running
from sparkd.agent.preflight.gate import LOOK_SECONDS
from sparkd.base.cluster.membership import NodeContext
from sparkd.base.config import Settings
from sparkd.base.host import Host
from sparkd.base.lib import start_thread
from sparkd.base.lib.errors import RankEndedError
from sparkd.base.lib.log import Events, ProcessLog
from sparkd.base.lib.main_loop import MainLoop
from sparkd.base.lib.redaction import Redaction
from sparkd.base.lib.redactor import Redactor
from sparkd.base.lib.systemd import Journal, Notifier
from sparkd.base.plan.model import LaunchPlan
from sparkd.base.status.model import MemoryReport, Phase
from sparkd.base.status.phases import may_follow
from sparkd.base.status.publisher import Reporter, Sink
from sparkd.base.vllm.api import Endpoint
from sparkd.base.vllm.args import API_KEY

if TYPE_CHECKING:
    from sparkd.agent.daemon.admission import Admission, Backoff
    from sparkd.agent.daemon.agreed import Agreed, PlanDifferences
    from sparkd.agent.daemon.head_config import HeadFollower
    from sparkd.agent.daemon.history import LaunchRow
    from sparkd.agent.daemon.proving import ProvingPeriod
    from sparkd.agent.daemon.switching import Switching


T = TypeVar("T")


class Pace(Struct, frozen=True):
    """Pauses and limits of an agent's waits."""

    retry_seconds: tuple[float, ...] = (5.0, 15.0, 60.0, 300.0)
    """Pauses between two tries of a blocked node while nothing changes. The last one repeats."""
    look_seconds: float = 5.0
    """Pause between two looks at what blocks: a repaired node is to serve within 15 s plus the engine's own start."""
    look_share: float = 0.01
    """Largest share of one core that these looks use."""
    hang_seconds: float = LOOK_SECONDS
    """Limit for one of these looks."""
    rdma_seconds: float = 3.0
    """Pause between two looks for RDMA devices while the other nodes are awaited."""
    message_seconds: float = 35.0
    """Limit for each way of a message before a reboot: an operator's program has 30 s, a webhook 10."""
    last_look_seconds: float = 3.0
    """Limit for the looks at the end of a run: at ports, and at dockerd, which lists its containers in milliseconds."""


USUAL_PACE = Pace()


class Base(Struct, frozen=True):
    """The part of the context that needs no place in the cluster."""

    settings: Settings
    host: Host
    actions: Actions
    loop: MainLoop
    notifier: Notifier
    journal: Journal
    log: ProcessLog
    configured_at: object
    """Stamp of the configuration, from before it was read."""
    switch_seen: object = None
    """Stamp of the choice that may replace its plan, likewise from before it was read."""
    notify: Sink | None = None
    """Takes each report, for messages to people; None where none are configured."""
    pace: Pace = USUAL_PACE


class Context(Base, frozen=True, kw_only=True):
    """The context of one process, which launches once."""

    context: NodeContext
    events: Events
    redact: Redaction
    redact_line: Redactor
    """Redacts the engine's log: faster, and leaves more in."""
    reporter: Reporter
    monitor: PeerMonitor
    cluster: Cluster
    boot_id: str
    rank_id: str
    """Identifies the one rank that it launches. A head's is also the epoch."""
    secrets: Mapping[str, str]
    """The engine's secrets, by name."""
    store: StateStore
    rank: OwnRank
    phase: PhaseReport
    follower: HeadFollower | None
    """Only on a worker with `cluster.follow_head`."""

    @property
    def plan(self) -> LaunchPlan:
        return self.context.plan

    @property
    def api_key(self) -> str | None:
        return self.secrets.get(API_KEY)

    @property
    def incarnation(self) -> str:
        """Identifies this agent's process."""
        return self.actions.owner.invocation

    def endpoint(self, running: Running) -> Endpoint:
        return running.endpoint(self.plan, self.api_key, self.events)

    def look(self, work: Callable[[], T], seconds: float, what: str, unknown: T) -> T:
        """Run `work` beside the loop. Returns `unknown` where it hangs, or no thread can be started."""
        with suppress(TimeoutError, BlockingIOError):
            return self.loop.beside(work, seconds, what)
        return unknown

    def run_aside(self, name: str, work: Callable[[], object]) -> None:
        """Run `work` in a thread that nothing waits for. If none can be started: `agent.thread.failed`."""
        try:
            start_thread(threading.Thread(target=work, name=name, daemon=True))
        except BlockingIOError as error:
            self.events.warning("agent.thread.failed", thread=name, reason=str(error))


class Agent(Context, frozen=True, kw_only=True):
    """The context, and the objects of a run. Made by `bootstrap.build_agent`."""

    agreed: Agreed
    admission: Admission
    backoff: Backoff
    differences: PlanDifferences
    switching: Switching
    launch_row: LaunchRow
    proving: ProvingPeriod


class PhaseReport(Struct):
    """Enters the phases of the report. Used by the main thread."""

    host: Host
    reporter: Reporter
    events: Events
    rank: OwnRank
    floor_bytes: int
    failed_in: Phase | None = None
    """The phase in which the run failed or was blocked, until that is tried again."""

    def enter(self, phase: Phase, message: str = "", *, draining: bool = False, action: str = "") -> None:
        """Enter a phase, or report a new message in the current one.

        `draining`: requests still run. `action`: what somebody has to do.
        """
        previous = self.reporter.report.phase
        has_ended = phase in (Phase.BLOCKED, Phase.FAILED)
        if has_ended and self.failed_in is None:
            self.failed_in = previous
        self.reporter.update(phase=phase, message=message, draining=draining, action=action, memory=self.memory())
        if not may_follow(previous, phase):
            hint = "the engine is not touched; please report this"
            self.events.error("agent.phase.unexpected", before=previous.value, phase=phase.value, hint=hint)
        if phase is not previous:
            # A failure is logged as an event of its own, with its reason.
            self.events.info("agent.phase.changed", phase=phase.value, message="" if has_ended else message)

    def forget_failure(self) -> None:
        """Forget the phase that failed, before it is tried again."""
        self.failed_in = None

    def memory(self) -> MemoryReport | None:
        try:
            info = self.host.meminfo()
        except (OSError, ValueError):
            return None
        running = self.rank.running
        return MemoryReport(
            info.total_bytes,
            info.available_bytes,
            floor_bytes=self.floor_bytes or None,
            guard=running.guard_state if running else "",
            released_bytes=running.released_bytes if running else 0,
        )

    def sample_memory(self) -> None:
        """Add a sample to the report's last minutes, in whatever phase."""
        if self.reporter.sample_due:
            self.reporter.update(memory=self.memory())


class OwnRank(Struct):
    """The rank of this agent, if any. Used by the main thread."""

    running: Running | None = None

    def take(self, running: Running) -> None:
        self.running = running

    def drop(self) -> None:
        """Forget a rank that was ended on purpose: the next launch replaces it."""
        self.running = None

    def raise_if_killed(self) -> None:
        """Raises MemoryGuardError where the guard has killed it."""
        if self.running is not None and self.running.guard is not None:
            self.running.guard.raise_if_killed()

    def raise_if_ended(self) -> None:
        """Raises RankEndedError where the rank has ended."""
        if self.running is not None and self.running.rank.ended.is_set():
            raise RankEndedError("the engine ended")

    def raise_if_halted(self) -> None:
        """Raises StalledError where the rank serves, and is stopped or frozen."""
        if self.running is not None and self.running.hang is not None:
            self.running.hang.check()
