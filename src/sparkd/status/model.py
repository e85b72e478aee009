"""NodeReport: the node's state, from which every display is made."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from enum import Enum
from typing import TypeVar, cast

from msgspec import Struct, convert, field, to_builtins
from msgspec.structs import replace

from sparkd.host.files import Files
from sparkd.host.processes import read_process
from sparkd.lib.text import parse_json, sanitize

PATH, LIMIT_BYTES = "/run/sparkd/report.json", 1 << 20
REPORT_SCHEMA = 1
"""New fields are free: a reader skips those that it does not know. A new phase or contact is a new schema."""

TEXT_LIMIT = 1000
"""Characters of each text of another node; a cause that quotes an engine has a few hundred."""
ITEMS_LIMIT = 100
"""Of findings and versions; preflight has some thirty checks."""
NUMBER_LIMIT = 1 << 63
SHORTER = ((TEXT_LIMIT, ITEMS_LIMIT), (200, 30), (40, 4))
"""Limits of texts and items: by the last ones, the reports of 64 nodes fit into LIMIT_BYTES."""
Value = TypeVar("Value", bound=Struct)

UNCHANGED_SECONDS = 2.0
"""Less than this is the answer's travel time."""


class Phase(Enum):
    """The node's phase."""

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
    """The rank on this node. `progress` is 0 to 1 of the current step, None where it is not counted."""

    container_id: str = ""
    image: str = ""
    phase: str = ""
    progress: float | None = None
    seconds_left: float | None = None
    kv_cache_tokens: int | None = None
    idle_seconds: int | None = None
    """How long a load has shown no work; None while it does, and where it is not watched."""


class MemoryReport(Struct, frozen=True):
    total_bytes: int
    available_bytes: int


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
    """Its last correctly signed report, without its peers."""
    said: str = ""
    """Why it does not answer, or why its answer proves nothing."""
    own_address_gone: bool = False
    """The node that writes this has lost its own address, and so can't reach the other one."""
    clock_ahead_seconds: float | None = None
    """How far its clock is ahead of this node's; None before its first date."""

    @property
    def name(self) -> str:
        """As a person knows the node: `spark2 (10.0.0.2)`."""
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
    """Of the node on the fabric; empty where the cluster is this node alone."""
    plan_digest: str = ""
    """Of all that the ranks must share. Empty until docker and the model's folder have been looked at."""
    transport: str = ""
    """`rdma` or `tcp`: what NCCL can use here, or with an epoch, what all ranks use. Empty where it needs none."""
    versions: Mapping[str, str] = field(default_factory=dict)
    """Of sparkd, driver, kernel, docker: a difference between nodes is a warning."""
    message: str = ""
    last_cause: str = ""
    """Why the agent before this one ended."""
    last_cause_code: str = ""
    """The same as a `Cause` of sparkd.lib.errors."""
    last_hint: str = ""
    """What to do about it."""
    findings: tuple[FindingReport, ...] = ()
    engine: EngineReport = EngineReport()
    memory: MemoryReport | None = None
    pid: int = 0
    """Of the agent: by it a reader without root knows whether that agent still runs."""
    start_time: int = 0
    """Of the agent, in clock ticks since boot: a pid may be reused."""
    peers: tuple[PeerStatus, ...] = ()
    """The other nodes, in rank order."""


def utc_now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def seconds_since(stamp: str, now: datetime) -> float | None:
    """None where `stamp` is none. Never negative: another node's clock may be ahead of this one's."""
    try:
        then = datetime.fromisoformat(stamp)
        # A stamp without a zone is UTC, as all of them are.
        seconds = (now - (then if then.tzinfo else then.replace(tzinfo=UTC))).total_seconds()
    except (ValueError, OverflowError):
        return None
    return max(0.0, seconds)


def format_duration(seconds: float | None) -> str:
    """`12 s`, `3 min`, `2 h 5 min`, `4 d 3 h`; `?` for None."""
    if seconds is None:
        return "?"
    minutes, hours, days = (int(seconds) // unit for unit in (60, 3600, 86400))
    if days:
        return f"{days} d {hours % 24} h"
    if hours:
        return f"{hours} h {minutes % 60} min"
    return f"{minutes} min" if minutes else f"{int(seconds)} s"


def clock_ahead(date: str, now: float, known: float | None) -> float | None:
    """Whole seconds that the other clock is ahead; `known` where that has hardly changed, or there is no date.

    The Date of an answer is not signed: forging it could make a warning appear, and nothing else.
    """
    try:
        sent = parsedate_to_datetime(date).timestamp() + 0.5  # cut to whole seconds: on average half a second old
    except (ValueError, TypeError, OverflowError):
        return known
    found = float(round(sent - now))
    return known if known is not None and abs(found - known) < UNCHANGED_SECONDS else found


def redacted(report: NodeReport, redact: Callable[[str], str]) -> NodeReport:
    """The report without secrets: causes quote the engine, findings quote hooks."""
    findings = tuple(replace(one, reason=redact(one.reason), hint=redact(one.hint)) for one in report.findings)
    message, cause, hint = redact(report.message), redact(report.last_cause), redact(report.last_hint)
    return replace(report, message=message, last_cause=cause, last_hint=hint, findings=findings)


def dump(report: NodeReport) -> str:
    """JSON that every reader takes: where it would be larger, texts are cut and lists are shortened."""
    text = _encode(report, ascii_only=True)
    for text_limit, items_limit in SHORTER:
        if len(text) <= LIMIT_BYTES and len(text.encode()) <= LIMIT_BYTES:
            break
        peers = tuple(bounded(one, text_limit, items_limit) for one in report.peers)
        shorter = replace(bounded(replace(report, peers=()), text_limit, items_limit), peers=peers)
        text = _encode(shorter, ascii_only=False)  # an escaped character may take twelve bytes
    return text


def _encode(report: NodeReport, *, ascii_only: bool) -> str:
    fields = {"schema": REPORT_SCHEMA, **to_builtins(report)}
    return json.dumps(fields, indent=1, ensure_ascii=ascii_only) + "\n"


def bounded(value: Value, text_limit: int = TEXT_LIMIT, items_limit: int = ITEMS_LIMIT) -> Value:
    """A report or a part of one, with texts on one line. Raises ValueError for a number without sense."""
    return cast("Value", _bound(value, text_limit, items_limit))


def _bound(value: object, text_limit: int, items_limit: int) -> object:
    match value:
        case str():
            return sanitize(value, text_limit)
        case int() | float() if abs(value) >= NUMBER_LIMIT or not math.isfinite(value):
            raise ValueError("number out of range")
        case tuple():
            return tuple(_bound(one, text_limit, items_limit) for one in value[:items_limit])
        case Mapping():
            names = list(value)[:items_limit]
            return {sanitize(name, text_limit): _bound(value[name], text_limit, items_limit) for name in names}
        case Struct():
            fields = {name: _bound(getattr(value, name), text_limit, items_limit) for name in value.__struct_fields__}
            return replace(value, **fields)
    return value


def parse(text: str) -> NodeReport | None:
    """Read a report; None where it is not one (other schema, cut off, nested without end)."""
    with suppress(ValueError):  # msgspec's own ValidationError is a ValueError
        match parse_json(text):
            case {"schema": 1, **fields}:
                return convert(fields, NodeReport)
    return None


def read_report(files: Files) -> str:
    """The report that this node's agent has written, as it stands; empty where there is none."""
    try:
        return files.text(PATH, LIMIT_BYTES)
    except OSError:
        return ""


def agent_running(files: Files, report: NodeReport) -> bool:
    """Whether the agent that wrote the report still runs."""
    try:
        process = read_process(files, report.pid)
    except OSError:
        return False
    return process is not None and process.start_time == report.start_time and not process.dead
