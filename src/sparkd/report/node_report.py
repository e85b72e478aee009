"""NodeReport: the one object that says what this node is doing. Everything shown anywhere comes from it."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from enum import Enum

REPORT_SCHEMA = 1


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


@dataclass(frozen=True)
class FindingReport:
    id: str
    level: str
    reason: str
    hint: str


@dataclass(frozen=True)
class EngineReport:
    """The rank on this node. `progress` is 0 to 1 of the step at hand, None where it has no count."""

    container_id: str = ""
    image: str = ""
    phase: str = ""
    progress: float | None = None
    seconds_left: float | None = None
    kv_cache_tokens: int | None = None


@dataclass(frozen=True)
class MemoryReport:
    total_bytes: int
    available_bytes: int


@dataclass(frozen=True)
class NodeReport:
    """Stamps are UTC, ISO 8601."""

    node: str
    role: str
    rank: int
    phase: Phase
    since: str
    epoch: str
    incarnation: str
    version: str
    plan_digest: str = ""
    message: str = ""
    last_cause: str = ""
    findings: tuple[FindingReport, ...] = ()
    engine: EngineReport = EngineReport()
    memory: MemoryReport | None = None
    pid: int = 0
    """Of the agent: a reader without root tells by it whether the report is of a living agent."""
    start_time: int = 0
    """Of the agent, in clock ticks since boot: a pid alone may be another process by now."""


def redacted(report: NodeReport, redact: Callable[[str], str]) -> NodeReport:
    """The report without secrets: causes quote the engine, findings quote hooks."""
    findings = tuple(replace(one, reason=redact(one.reason), hint=redact(one.hint)) for one in report.findings)
    message, cause = redact(report.message), redact(report.last_cause)
    return replace(report, message=message, last_cause=cause, findings=findings)


def dump(report: NodeReport) -> str:
    data = asdict(report)
    data["phase"] = report.phase.value
    return json.dumps({"schema": REPORT_SCHEMA, **data, "peers": []}, indent=1) + "\n"


def parse(text: str) -> NodeReport | None:
    """Read report.json; None where it is not one (other schema, cut off)."""
    from pydantic import TypeAdapter, ValidationError

    try:
        match json.loads(text):
            case {"schema": 1, **fields}:
                return TypeAdapter(NodeReport).validate_python(fields)
    except (ValueError, ValidationError):
        pass
    return None
