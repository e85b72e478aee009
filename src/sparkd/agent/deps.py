"""What every step of an agent uses (`Deps`), and what a step leaves to later ones (`State`)."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from functools import partial

from msgspec import Struct, field

from sparkd.actions import Actions
from sparkd.agent.head_config import HeadFollower
from sparkd.cluster.membership import NodeContext
from sparkd.cluster.monitor import PeerMonitor
from sparkd.cluster.service import Cluster
from sparkd.config import Settings
from sparkd.engine.api_owner import ApiOwner
from sparkd.engine.rank import Running
from sparkd.host import Host, versions
from sparkd.lib import start_thread
from sparkd.lib.log import Events, ProcessLog
from sparkd.lib.main_loop import MainLoop, Outcome
from sparkd.lib.systemd import Journal, Notifier
from sparkd.lib.text import Redactor
from sparkd.plan.agreement import Agreement
from sparkd.plan.model import LaunchPlan
from sparkd.state import launch_history
from sparkd.state.file import FOLDER, Content, StateFile
from sparkd.state.history import Launch, Past
from sparkd.state.known_good import LOOKED_AT, Facts, node_values
from sparkd.state.launch_history import LaunchHistory
from sparkd.state.rank_record import FILE as RANK_FILE
from sparkd.state.rank_record import RankRecord
from sparkd.state.switch import Switch
from sparkd.status.model import MemoryReport, Phase, utc_now
from sparkd.status.phases import may_follow
from sparkd.status.publisher import Reporter, Sink
from sparkd.vllm.api import Endpoint


class State(Struct):
    failed_in: Phase | None = None
    """The phase in which the run failed, set once."""
    unwritten: set[str] = field(default_factory=set)
    """State files whose last write failed."""
    unread: set[str] = field(default_factory=set)
    """Why state files could not be read, as logged."""
    agreement: Agreement = field(default_factory=lambda: Agreement({}, ""))
    """What all ranks must share; no digest before the step `fingerprint`."""
    reported: dict[str, object] = field(default_factory=dict)
    """Verdicts, applied fixes and differing plans, as last logged."""
    given_up: set[str] = field(default_factory=set)
    """What preflight has awaited without effect, and goes without."""
    blocker: tuple[str, ...] = ()
    """The checks that block, or another reason, as last logged."""
    blocked_since: str = ""
    hung_look: Outcome[tuple[object, float]] | None = None
    """A look at what blocks that has not come back."""
    backed_off: bool = False
    """This process has waited out the backoff of the plan's failures."""
    proven: bool = False
    running: Running | None = None
    """The rank, from its launch on."""
    switch: Switch | None = None
    """What this process was started with, and what it has become."""
    switch_seen: object = None
    """Stamp of its file, as last looked at."""
    began: float = field(default_factory=time.monotonic)
    stuck_since: float | None = None
    """Monotonic, while a new plan is tried and a node is blocked."""
    past: Past = Past()
    """As the history was when this process began."""
    launch: Launch | None = None
    """This process's own, for the history."""
    served_since: float | None = None
    """Monotonic."""
    writing: threading.Lock = field(default_factory=threading.Lock)
    """Held to write the history."""


class Base(Struct, frozen=True):
    """The part that needs no place in the cluster."""

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
    """Stamp of the file that may replace its plan, likewise."""
    notify: Sink | None = None
    """Takes each report, for messages to people; None where none are configured."""


class Deps(Base, frozen=True, kw_only=True):
    """One agent: one process, one launch. Made by `bootstrap.build_agent`."""

    context: NodeContext
    events: Events
    redact: Redactor
    reporter: Reporter
    monitor: PeerMonitor
    cluster: Cluster
    boot_id: str
    rank_id: str
    """Of the one rank that it launches. A head's is also the epoch."""
    api_key: str | None
    follower: HeadFollower | None = None
    """Of a worker with `cluster.follow_head`."""
    state: State = field(default_factory=State)

    @property
    def plan(self) -> LaunchPlan:
        return self.context.plan

    @property
    def incarnation(self) -> str:
        """Of this agent's process."""
        return self.actions.owner.invocation

    def set_phase(self, phase: Phase, message: str = "", *, draining: bool = False) -> None:
        """Enter a phase, or report a new message in the current one. `draining`: requests still run."""
        before = self.reporter.report.phase
        ended = phase in (Phase.BLOCKED, Phase.FAILED)
        if ended and self.state.failed_in is None:
            self.state.failed_in = before
        self.reporter.update(phase=phase, message=message, draining=draining, memory=self.memory())
        if not may_follow(before, phase):
            hint = "the engine is not touched; please report this"
            self.events.error("agent.phase.unexpected", before=before.value, phase=phase.value, hint=hint)
        if phase is not before:
            # A failure is logged as an event of its own, with its reason.
            self.events.info("agent.phase.changed", phase=phase.value, message="" if ended else message)

    def memory(self) -> MemoryReport | None:
        try:
            info = self.host.meminfo()
        except (OSError, ValueError):
            return None
        running = self.state.running
        return MemoryReport(
            info.total_bytes,
            info.available_bytes,
            floor_bytes=self.settings.memory.floor_mib << 20 or None,
            guard=running.guard_state if running is not None else "",
            released_bytes=running.released_bytes if running is not None else 0,
        )

    def sample_memory(self) -> None:
        """For the last minutes in the report, in whatever phase."""
        if self.reporter.sample_due:
            self.reporter.update(memory=self.memory())

    def endpoint(self, running: Running) -> Endpoint:
        """Of the rank's API, which is proven to be this rank's before each request."""
        plan = self.plan
        if self.host.live:
            running.api = running.api or ApiOwner(self.host, running.rank, self.events, plan.api_host, plan.api_port)
        admit = running.api.admit if running.api is not None else None
        return Endpoint(plan.api_host, plan.api_port, plan.served_name, self.api_key, admit)

    def run_aside(self, name: str, work: Callable[[], object]) -> None:
        """In a thread whose result nothing waits for: its error is `agent.thread.failed`."""
        try:
            start_thread(threading.Thread(target=work, name=name, daemon=True))
        except BlockingIOError as error:
            self.events.warning("agent.thread.failed", thread=name, reason=str(error))

    def start_facts(self) -> Facts:
        """What a later start is compared with."""
        fingerprinted = bool(self.state.agreement.digest)
        values = self.state.agreement.values if fingerprinted else self.plan.shared
        return Facts(
            values={**dict(values), **node_values(self.plan)},
            versions=self.reporter.report.versions or versions.read_local_versions(self.host),
            boot=versions.read_boot(self.host, (name for name, _ in self.plan.sysctls)),
            unseen={} if fingerprinted else dict.fromkeys(LOOKED_AT, "the start ended before this was read"),
        )

    def read_launches(self) -> LaunchHistory:
        """From disk each time, so removing the file resets it."""
        return launch_history.read_history(self.host.files, self.report_unread)

    def record(self, change: Callable[[LaunchHistory], LaunchHistory]) -> bool:
        """Write the changed launch history, safe against crashes and power cuts; whether that worked."""
        before = self.read_launches()
        after = change(before)
        return after == before or self.write_state(launch_history.FILE, after)

    def record_start(self) -> None:
        """Until its end is recorded, this process counts as killed."""
        self.record(lambda launches: launches.recover(self.boot_id, utc_now()))

    def report_unread(self, reason: str) -> None:
        """A state file is unusable: the agent continues without it. Logged once."""
        if reason not in self.state.unread:
            self.state.unread.add(reason)
            self.events.warning("state.read.failed", reason=reason)

    def write_state(self, file: StateFile[Content], value: Content) -> bool:
        """Whether it worked. A full disk is logged once and ends no engine."""
        write = partial(self.actions.write_state, file.name, file.encode(value), file.mode)
        return self._try_to_write(file.name, write)

    def write_rank(self, record: RankRecord) -> bool:
        """The same for the rank's own record, in /run."""
        return self._try_to_write(RANK_FILE.name, partial(self.actions.write_rank, record), RANK_FILE.folder)

    def exchange_state(self, file: StateFile[Content], before: Content | None, after: Content | None) -> bool:
        """The same, where the file still holds `before`. `after` None: remove it."""
        return self._try_to_write(file.name, partial(self.actions.exchange_state, file, before, after))

    def _try_to_write(self, name: str, write: Callable[[], bool | None], folder: str = FOLDER) -> bool:
        try:
            done = write() is not False
        except OSError as error:
            if name not in self.state.unwritten:
                self.events.error("state.write.failed", file=name, reason=str(error), hint=f"df -h {folder}")
            self.state.unwritten.add(name)
            return False
        self.state.unwritten.discard(name)
        return done
