"""The frozen context that every step of an agent uses: values, and objects that own their state."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from msgspec import Struct

from sparkd.agent.actions import Actions
from sparkd.agent.cluster.monitor import PeerMonitor
from sparkd.agent.cluster.service import Cluster
from sparkd.agent.daemon.state_store import StateStore
from sparkd.agent.engine.rank import Running
from sparkd.agent.preflight.gate import LOOK_SECONDS, THREADS_HINT
from sparkd.base.cluster.membership import NodeContext
from sparkd.base.config import Settings
from sparkd.base.host import Host
from sparkd.base.host.owner import NodeOwner
from sparkd.base.lib import start_thread
from sparkd.base.lib.errors import BlockedError
from sparkd.base.lib.http_client import CONNECTIONS
from sparkd.base.lib.journal_writer import Journal
from sparkd.base.lib.log import Events, ProcessLog
from sparkd.base.lib.main_loop import MainLoop
from sparkd.base.lib.redaction import Redaction
from sparkd.base.lib.redactor import Redactor
from sparkd.base.lib.systemd import Notifier
from sparkd.base.plan.model import LaunchPlan
from sparkd.base.status.publisher import Reporter, Sink
from sparkd.base.vllm.api import Endpoint
from sparkd.base.vllm.args import API_KEY

if TYPE_CHECKING:
    from sparkd.agent.daemon.admission import Admission
    from sparkd.agent.daemon.agreed import Agreed
    from sparkd.agent.daemon.backoff import Backoff
    from sparkd.agent.daemon.head_follower import HeadFollower
    from sparkd.agent.daemon.history import LaunchRow
    from sparkd.agent.daemon.own_rank import OwnRank
    from sparkd.agent.daemon.phase_report import PhaseReport
    from sparkd.agent.daemon.plan_differences import PlanDifferences
    from sparkd.agent.daemon.proving import ProvingPeriod
    from sparkd.agent.daemon.switching import Switching


T = TypeVar("T")


def beside_or_blocked(loop: MainLoop, work: Callable[[], T], seconds: float, what: str, hint: str) -> T:
    """Run `work` beside the loop. Raises BlockedError (exit 10) where it hangs, or no thread can be started."""
    try:
        return loop.beside(work, seconds, what)
    except BlockingIOError as error:
        raise BlockedError(f"{what}: {error}", THREADS_HINT) from None
    except TimeoutError as error:
        raise BlockedError(str(error), hint) from None


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
    read_seconds: float = 20.0
    """Limit for reading the settings, or the plan."""
    rdma_seconds: float = 3.0
    """Pause between two looks for RDMA devices while the other nodes are awaited."""
    message_seconds: float = 35.0
    """Limit for each way of a message before a reboot: an operator's program has 30 s, a webhook 10."""
    last_look_seconds: float = 3.0
    """Limit for the looks at the end of a run: at ports, and at dockerd, which lists its containers in milliseconds."""
    step_seconds: float = 10.0
    """Pause between two readings of the engine's counters, which move with each step: one of 8,192 tokens of a prompt
    takes some 4 s on a GB10."""
    last_report_seconds: float = 2.0
    """How long the other nodes can read the last report."""


USUAL_PACE = Pace()


class AgentProcess(Struct, frozen=True):
    """The part of the context that is known before the settings, whether a rank is taken over or one is started."""

    role: str
    host: Host
    owner: NodeOwner
    loop: MainLoop
    notifier: Notifier
    journal: Journal
    log: ProcessLog
    configured_at: Mapping[Path, tuple[int, ...]]
    """Stamp of the configuration, from before it was read."""
    pace: Pace = USUAL_PACE


class Base(AgentProcess, frozen=True, kw_only=True):
    """The part of the context that needs no place in the cluster."""

    settings: Settings
    actions: Actions
    switch_seen: object = None
    """Stamp of the choice that may replace its plan, likewise from before it was read."""
    notify: Sink | None = None
    """Takes each report, for messages to people; None where none are configured."""


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

    def endpoint(self, running: Running, connections: int = CONNECTIONS) -> Endpoint:
        return running.endpoint(self.plan, self.secrets.get(API_KEY), self.events, connections)

    def look(self, work: Callable[[], T], seconds: float, what: str, unknown: T, *, shielded: bool = False) -> T:
        """Run `work` beside the loop. Returns `unknown` where it hangs or fails, or no thread can be started."""
        with suppress(OSError):
            return self.loop.beside(work, seconds, what, shielded=shielded)
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
