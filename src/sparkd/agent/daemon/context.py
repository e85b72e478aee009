"""What every step of an agent uses: a frozen context, of values and of objects that own their state."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from msgspec import Struct

from sparkd.actions import Actions
from sparkd.agent.own_rank import OwnRank
from sparkd.agent.phase_report import PhaseReport
from sparkd.agent.state_store import StateStore
from sparkd.cluster.membership import NodeContext
from sparkd.cluster.monitor import PeerMonitor
from sparkd.cluster.service import Cluster
from sparkd.config import Settings
from sparkd.engine.rank import Running
from sparkd.host import Host
from sparkd.lib import start_thread
from sparkd.lib.log import Events, ProcessLog
from sparkd.lib.main_loop import MainLoop
from sparkd.lib.systemd import Journal, Notifier
from sparkd.lib.text import Redactor
from sparkd.plan.model import LaunchPlan
from sparkd.status.publisher import Reporter, Sink
from sparkd.vllm.api import Endpoint

if TYPE_CHECKING:
    from sparkd.agent.admission import Admission
    from sparkd.agent.agreed import Agreed
    from sparkd.agent.backoff import Backoff
    from sparkd.agent.head_config import HeadFollower
    from sparkd.agent.history import LaunchRow
    from sparkd.agent.plan_differences import PlanDifferences
    from sparkd.agent.proving import ProvingPeriod
    from sparkd.agent.switching import Switching


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
    """Stamp of the choice that may replace its plan, likewise."""
    notify: Sink | None = None
    """Takes each report, for messages to people; None where none are configured."""


class Context(Base, frozen=True, kw_only=True):
    """One process, one launch."""

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
    store: StateStore
    rank: OwnRank
    phase: PhaseReport
    follower: HeadFollower | None
    """Of a worker with `cluster.follow_head`."""

    @property
    def plan(self) -> LaunchPlan:
        return self.context.plan

    @property
    def incarnation(self) -> str:
        """Of this agent's process."""
        return self.actions.owner.invocation

    def endpoint(self, running: Running) -> Endpoint:
        return running.endpoint(self.plan, self.api_key, self.events)

    def run_aside(self, name: str, work: Callable[[], object]) -> None:
        """In a thread whose result nothing waits for: its error is `agent.thread.failed`."""
        try:
            start_thread(threading.Thread(target=work, name=name, daemon=True))
        except BlockingIOError as error:
            self.events.warning("agent.thread.failed", thread=name, reason=str(error))


class Agent(Context, frozen=True, kw_only=True):
    """Made by `bootstrap.build_agent`."""

    agreed: Agreed
    admission: Admission
    backoff: Backoff
    differences: PlanDifferences
    switching: Switching
    launch_row: LaunchRow
    proving: ProvingPeriod
