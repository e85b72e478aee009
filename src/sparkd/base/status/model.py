"""NodeReport: the node's state, from which every display is made, and its file, as this node's agent has written it."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from enum import Enum

from msgspec import UNSET, Struct, UnsetType, convert, field
from msgspec import json as fast_json
from msgspec.structs import asdict, replace

from sparkd.base.host.files import Files
from sparkd.base.host.processes import is_alive
from sparkd.base.lib import prepared
from sparkd.base.lib.text import parse_json
from sparkd.base.status.bounds import ITEMS_LIMIT, TEXT_LIMIT, bounded
from sparkd.base.status.figures import ActivityReport, EngineReport, GpuReport, HealthReport

PATH = "/run/sparkd/report.json"
"""The report's file, which commands and checks read."""
LIMIT_BYTES = 1 << 20
REPORT_SCHEMA = 1
"""New fields are free: a reader skips those that it does not know. A new phase or contact is a new schema."""

SHORTER = ((TEXT_LIMIT, ITEMS_LIMIT), (200, 30), (40, 4))
"""Limits of texts and items; the last ones make any report fit."""
PEER_LIMIT_BYTES = LIMIT_BYTES // 16
"""Largest report of another node: seven take less than half of this node's. A usual one has some 5 KB."""


class Phase(Enum):
    PREFLIGHT = "preflight"
    BLOCKED = "blocked"
    AWAITING_DOCKER = "awaiting-docker"
    AWAITING_PEERS = "awaiting-peers"
    COOLING = "cooling"
    LAUNCHING = "launching"
    LOADING = "loading"
    SERVING = "serving"
    DEGRADED = "degraded"
    STOPPING = "stopping"
    STOPPED = "stopped"
    FAILED = "failed"


IN_SERVICE = (Phase.SERVING, Phase.DEGRADED)
UNKNOWN_RANK = -1


class FindingReport(Struct, frozen=True):
    id: str
    level: str
    reason: str
    hint: str
    action: str = ""
    """An `Action` of sparkd.base.lib.errors, where the finding blocks, or comes from the kernel's log."""
    at: str | UnsetType = UNSET
    """UTC, ISO 8601: when the kernel logged it. Only a finding from the kernel's log has one, also in JSON."""


class MemoryReport(Struct, frozen=True):
    total_bytes: int
    available_bytes: int
    used_percent: tuple[int, ...] = ()
    """One for each ten seconds of the last ten minutes, newest last."""
    floor_bytes: int | None = None
    """Available memory below which the guard kills the engine; None: it never does."""
    guard: str = ""
    """The memory guard's state, a `GuardState`; empty while there is no engine."""
    released_bytes: int = 0


class RestartReport(Struct, frozen=True):
    """Ends of agents that nobody requested, of one `Cause` or none, within a day. `reason`: of the last one."""

    cause: str
    count: int
    last: str
    reason: str


class Contact(Enum):
    """A node's contact with another one."""

    UNHEARD = "unheard"
    """Not requested yet, or never answered since this agent began."""
    ANSWERS = "answers"
    REFUSED = "refused"
    """The machine is up, and no agent listens on it."""
    SILENT = "silent"
    UNSIGNED = "unsigned"
    """It answers, but the signature is not of our key, or it refuses ours."""


class PeerStatus(Struct, frozen=True):
    """Another node of the cluster, as this node knows it. `since`: UTC time of the contact's last change."""

    address: str
    rank: int
    contact: Contact
    since: str
    report: NodeReport | None = None
    """The last correctly signed report of that node, without its peers."""
    said: str = ""
    """Why it does not answer, or why its answer proves nothing."""
    own_address_gone: bool = False
    """The node that writes this has lost its own address, and so can't reach the other one."""
    clock_ahead_seconds: float | None = None
    """Seconds that its clock is ahead of this node's; None before its first date."""

    @property
    def name(self) -> str:
        """The node's name for a person: `spark2 (10.0.0.2)`."""
        return f"{self.report.node} ({self.address})" if self.report else self.address

    @property
    def living(self) -> NodeReport | None:
        """The report of an agent that answers."""
        return self.report if self.contact is Contact.ANSWERS else None


class NodeReport(Struct, frozen=True):
    """Stamps are UTC, ISO 8601."""

    node: str
    role: str
    rank: int
    """-1 until this node has its address."""
    phase: Phase
    since: str
    epoch: str
    incarnation: str
    version: str
    address: str = ""
    """The node's address on the fabric; empty where the cluster is this node alone."""
    lan_address: str = ""
    """The node's address toward other networks; empty where it has none, or no other nodes."""
    plan_digest: str = ""
    """Digest of all that the ranks must share. Empty until docker and the model's folder have been read."""
    config_digest: str = ""
    """Digest of the configuration that a head serves to its workers; on a worker, of the one that it follows."""
    transport: str = ""
    """`rdma` or `tcp`: what NCCL can use here, or with an epoch, what all ranks use. Empty where it needs none."""
    versions: Mapping[str, str] = field(default_factory=dict)
    """Versions of sparkd, driver, kernel, docker: a difference between nodes is a warning."""
    message: str = ""
    hint: str = ""
    """What to do about `message`; empty where that, a finding or the last cause says it."""
    cause: str = ""
    """Why a run failed: a `Cause` of sparkd.base.lib.errors."""
    action: str = ""
    """What the cause, or a finding that blocks, requires: an `Action` of sparkd.base.lib.errors."""
    draining: bool = False
    """Whether, in the phase `stopping`, the requests that run still get their time."""
    recipe: str = ""
    last_cause: str = ""
    """Why the agent before this one ended."""
    last_cause_code: str = ""
    """`last_cause` as a `Cause` of sparkd.base.lib.errors."""
    last_action: str = ""
    """What that cause required, as `action`."""
    last_hint: str = ""
    """What to do about that cause."""
    findings: tuple[FindingReport, ...] = ()
    engine: EngineReport = EngineReport()
    memory: MemoryReport | None = None
    activity: ActivityReport | None = None
    """Figures of the requests; None unless the node serves and its engine has answered."""
    health: HealthReport | None = None
    smoke_passed: bool | None = None
    """The test of this launch's answers; None where there was none."""
    gpu: GpuReport | None = None
    restarts: tuple[RestartReport, ...] = ()
    """Ends known when this agent began, the most recent cause last."""
    pid: int = 0
    """The agent's pid: by it a reader without root knows whether that agent still runs."""
    start_time: int = 0
    """The agent's start, in clock ticks since boot: a pid may be reused."""
    rank_id: str = ""
    """Id of the rank that it launches; empty until it is placed."""
    awaits_agents_seconds: int = 0
    """Seconds that this node waits for the agent of another rank that serves; 0: an earlier version, which does not."""
    launches: int | None = None
    """Launches on this node, by all agents before this one; None where the history is not readable."""
    ends: Mapping[str, int] = field(default_factory=dict)
    """Ends of these launches, by `Cause`."""
    phase_seconds: Mapping[str, float] = field(default_factory=dict)
    """Time in each phase that this agent has left."""
    kernel_counts: Mapping[str, int] = field(default_factory=dict)
    """Messages of the kernel's log that matter, by kind and action: `xid restart`."""
    peers: tuple[PeerStatus, ...] = ()
    """The other nodes, in rank order."""

    @property
    def launch_id(self) -> str:
        """The rank's id; of an agent of an earlier version, which has none, its incarnation."""
        return self.rank_id or self.incarnation

    @property
    def head(self) -> NodeReport | None:
        """The report of the head, where its agent answers. It alone says where clients reach the API."""
        return self if self.rank == 0 else next((peer.living for peer in self.peers if peer.rank == 0), None)


def without_figures(report: NodeReport) -> NodeReport:
    """The report without figures that change all the time, here and of other nodes. They wake no waiting reader."""
    peers = tuple(replace(peer, report=peer.report and without_figures(peer.report)) for peer in report.peers)
    return replace(report, memory=None, activity=None, health=None, gpu=None, kernel_counts={}, peers=peers)


def dump(report: NodeReport) -> str:
    """JSON of at most LIMIT_BYTES: where it would be larger, this node's texts are cut and its lists shortened."""
    return fit(report, LIMIT_BYTES)[1]


def fit(report: NodeReport, limit_bytes: int) -> tuple[NodeReport, str]:
    """The report, shortened until its JSON is within the limit, and that JSON. Its peers stay as they are."""
    text = _encode(report)
    for text_limit, items_limit in SHORTER:
        if text and len(text.encode()) <= limit_bytes:
            break
        report = replace(bounded(replace(report, peers=()), text_limit, items_limit), peers=report.peers)
        text = _encode(report)
    return report, text


def _encode(report: NodeReport) -> str:
    """The report's JSON; empty where a text has half of a surrogate pair, which UTF-8 can't encode."""
    with suppress(UnicodeEncodeError):
        return fast_json.format(fast_json.encode({"schema": REPORT_SCHEMA, **asdict(report)}), indent=1).decode() + "\n"
    return ""


def parse(text: str) -> NodeReport | None:
    """Read a report; None where it is not one (other schema, cut off, nested without end)."""
    with suppress(ValueError):  # msgspec's own ValidationError is a ValueError
        match parse_json(text):
            case {"schema": schema, **fields} if schema == REPORT_SCHEMA:
                return convert(fields, prepared(NodeReport))
    return None


def read_report(files: Files) -> str:
    """The report that this node's agent has written, as it stands; empty where there is none."""
    with suppress(OSError):
        return files.text(PATH, LIMIT_BYTES)
    return ""


def agent_running(files: Files, report: NodeReport) -> bool:
    """Whether the agent that wrote the report still runs."""
    with suppress(OSError):
        return is_alive(files, report.pid, report.start_time)
    return False


def read_living_report(files: Files) -> NodeReport | None:
    """The report of the agent that runs; None without one, since the report of an earlier agent is old."""
    report = parse(read_report(files))
    return report if report is not None and agent_running(files, report) else None
