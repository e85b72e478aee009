"""NodeReport: the one object that says what this node is doing. Everything shown anywhere comes from it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from enum import Enum

from msgspec import Struct, convert, field, to_builtins
from msgspec.structs import replace

REPORT_SCHEMA = 1
"""New fields are free: who does not know one leaves it out. A new phase or contact is a new schema."""


class Phase(Enum):
    """Where the node is in its life."""

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


class FindingReport(Struct, frozen=True):
    id: str
    level: str
    reason: str
    hint: str


class EngineReport(Struct, frozen=True):
    """The rank on this node. `progress` is 0 to 1 of the step at hand, None where it has no count."""

    container_id: str = ""
    image: str = ""
    phase: str = ""
    progress: float | None = None
    seconds_left: float | None = None
    kv_cache_tokens: int | None = None


class MemoryReport(Struct, frozen=True):
    total_bytes: int
    available_bytes: int


class Contact(Enum):
    """What a node hears of another one."""

    UNHEARD = "unheard"
    """Not asked yet, or never answered since this agent began."""
    ANSWERS = "answers"
    REFUSED = "refused"
    """The machine lives, and no agent listens on it."""
    SILENT = "silent"
    UNSIGNED = "unsigned"
    """It answers, but the signature is not of our key, or it refuses ours."""


class PeerReport(Struct, frozen=True):
    """Another node of the cluster, as this node knows it. `since`: UTC, when the contact became what it is."""

    address: str
    rank: int
    contact: Contact
    since: str
    report: NodeReport | None = None
    """Its last report whose signature was right, without the peers that it knows."""
    said: str = ""
    """Why it does not answer, or why its answer proves nothing."""
    clock_ahead_seconds: float | None = None
    """How far its clock is ahead of this node's; None while no date of it has come."""


class NodeReport(Struct, frozen=True):
    """Stamps are UTC, ISO 8601."""

    node: str
    role: str
    rank: int
    """-1 while the address is awaited that tells it."""
    phase: Phase
    since: str
    epoch: str
    incarnation: str
    version: str
    address: str = ""
    """Of the node on the fabric; empty where the cluster is this node alone."""
    plan_digest: str = ""
    """Of all that the ranks must share. Empty until docker and the model's folder have been looked at."""
    versions: Mapping[str, str] = field(default_factory=dict)
    """Of sparkd, driver, kernel, docker: a difference between nodes is a warning."""
    message: str = ""
    last_cause: str = ""
    findings: tuple[FindingReport, ...] = ()
    engine: EngineReport = EngineReport()
    memory: MemoryReport | None = None
    pid: int = 0
    """Of the agent: a reader without root tells by it whether the report is of a living agent."""
    start_time: int = 0
    """Of the agent, in clock ticks since boot: a pid alone may be another process by now."""
    peers: tuple[PeerReport, ...] = ()
    """The other nodes, in rank order."""


def utc_now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def redacted(report: NodeReport, redact: Callable[[str], str]) -> NodeReport:
    """The report without secrets: causes quote the engine, findings quote hooks."""
    findings = tuple(replace(one, reason=redact(one.reason), hint=redact(one.hint)) for one in report.findings)
    message, cause = redact(report.message), redact(report.last_cause)
    return replace(report, message=message, last_cause=cause, findings=findings)


def dump(report: NodeReport) -> str:
    return json.dumps({"schema": REPORT_SCHEMA, **to_builtins(report)}, indent=1) + "\n"


def parse(text: str) -> NodeReport | None:
    """Read a report; None where it is not one (other schema, cut off, nested without end)."""
    try:
        match json.loads(text):
            case {"schema": 1, **fields}:
                return convert(fields, NodeReport)
    except (ValueError, RecursionError):  # msgspec's own ValidationError is a ValueError
        pass
    return None
