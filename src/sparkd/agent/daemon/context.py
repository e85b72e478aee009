"""What every step of an agent uses: a frozen context, of values and of objects that own their state."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from msgspec import Struct

from sparkd.agent.actions import Actions
from sparkd.agent.cluster.monitor import PeerMonitor
from sparkd.agent.cluster.service import Cluster
from sparkd.agent.daemon.own_rank import OwnRank
from sparkd.agent.daemon.phase_report import PhaseReport
from sparkd.agent.daemon.state_store import StateStore
from sparkd.agent.engine.rank import Running
from sparkd.base.cluster.membership import NodeContext
from sparkd.base.config import Settings
from sparkd.base.host import Host
from sparkd.base.lib import start_thread
from sparkd.base.lib.log import Events, ProcessLog
from sparkd.base.lib.main_loop import MainLoop
from sparkd.base.lib.systemd import Journal, Notifier
from sparkd.base.lib.text import Redactor
from sparkd.base.plan.model import LaunchPlan
from sparkd.base.status.publisher import Reporter, Sink
from sparkd.base.vllm.api import Endpoint

if TYPE_CHECKING:
    from sparkd.agent.daemon.admission import Admission
    from sparkd.agent.daemon.agreed import Agreed
    from sparkd.agent.daemon.backoff import Backoff
    from sparkd.agent.daemon.head_config import HeadFollower
    from sparkd.agent.daemon.history import LaunchRow
    from sparkd.agent.daemon.plan_differences import PlanDifferences
    from sparkd.agent.daemon.proving import ProvingPeriod
    from sparkd.agent.daemon.switching import Switching


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
