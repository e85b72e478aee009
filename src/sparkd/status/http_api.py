"""The read-only HTTP API for people and monitors on `observe.listen`, without a key; `/metrics` is for Prometheus."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import UTC, datetime
from ipaddress import ip_address
from typing import TYPE_CHECKING

from sparkd.lib.http_connection import Handler, Request, Response
from sparkd.status.model import Contact, NodeReport, Phase, dump, seconds_since

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric

BEAT_LIMIT_SECONDS = 30.0
"""A main loop that has not turned for so long hangs: it turns every ten seconds at least."""
IN_SERVICE = (Phase.SERVING, Phase.DEGRADED)
PATHS = ("/livez", "/readyz", "/metrics", "/report")
TEXT = "text/plain; charset=utf-8"
LABEL_LIMIT = 200
Samples = Iterable[tuple[Mapping[str, str], float | None]]


def make_handler(report: Callable[[], NodeReport], beat_age: Callable[[], float]) -> Handler:
    """Answers at once, in the loop's thread.

    `report` is without secrets. `beat_age`: seconds since the agent's main loop last turned.
    """

    async def handle(request: Request) -> Response:
        known, age = report(), beat_age()
        path = request.path.partition("?")[0]
        if not _is_own_name(request.headers.get("host", ""), known.node):
            # The name of a foreign page may point at this machine, and a browser would read from here for it.
            return _answer(403, f"use the IP address, localhost or {known.node}\n")
        if path in ("/livez", "/readyz") and age > BEAT_LIMIT_SECONDS:  # the phase is as old as the beat
            return _answer(503, f"the agent's main loop has not turned for {age:.0f} s\n")
        match path:
            case "/livez":
                return _answer(200, "ok\n")
            case "/readyz":
                return _answer(200 if known.phase in IN_SERVICE else 503, f"{known.phase.value}\n")
            case "/metrics":
                return _answer(200, *render_metrics(known, datetime.now(UTC)))
            case "/report":
                return _answer(200, dump(known), "application/json")
        return _answer(404, f"here are {', '.join(PATHS)}\n")

    return handle


def _answer(status: int, body: str, content_type: str = TEXT) -> Response:
    # A name may hold half of a character, which is no UTF-8.
    data = body.encode("utf-8", "backslashreplace")
    return Response(status, data, content_type, (("X-Content-Type-Options", "nosniff"),))


def _is_own_name(host: str, node: str) -> bool:
    """Whether a Host header surely means this machine."""
    name, colon, port = host.rpartition(":")
    if not colon or not port.isdecimal():
        name = host
    if name.lower() in ("localhost", node.lower()):
        return True
    try:
        ip_address(name[1:-1] if name.startswith("[") and name.endswith("]") else name)
    except ValueError:
        return False
    return True


def _started_at(report: NodeReport) -> float | None:
    """Of the agent, since 1970; None where the report does not say."""
    if not report.start_time:
        return None
    since_boot = report.start_time / os.sysconf("SC_CLK_TCK")
    return round(time.time() - time.clock_gettime(time.CLOCK_BOOTTIME) + since_boot, 1)


def render_metrics(report: NodeReport, now: datetime) -> tuple[str, str]:
    """A page in text format 0.0.4, without unknown values, and its content type."""
    # Imported at the first page: 16 ms of CPU that a node without Prometheus does not need.
    from prometheus_client import CONTENT_TYPE_PLAIN_0_0_4, generate_latest
    from prometheus_client.registry import Collector

    class Gauges(Collector):
        def collect(self) -> Iterator[Metric]:
            return (family for family in _families(report, now) if family.samples)

    return generate_latest(Gauges()).decode(), CONTENT_TYPE_PLAIN_0_0_4


def _families(report: NodeReport, now: datetime) -> Iterator[Metric]:
    memory, engine = report.memory, report.engine
    names = {"version": report.version, "node": report.node, "role": report.role, "rank": str(report.rank)}
    info = {**names, "address": report.address, "plan_digest": report.plan_digest}
    yield _gauge("info", "What runs on this node; always 1.", [(info, 1)])
    total, available = (memory.total_bytes, memory.available_bytes) if memory else (None, None)
    for name, documentation, value in (
        ("start_time_seconds", "Start of the agent, since 1970.", _started_at(report)),
        ("phase_seconds", "Time in this phase.", seconds_since(report.since, now)),
        ("memory_total_bytes", "Memory of the node.", total),
        ("memory_available_bytes", "Memory that could be had without swapping.", available),
        ("engine_progress_ratio", "Progress of the step of the load, 0 to 1.", engine.progress),
        ("kv_cache_tokens", "Size of the KV cache.", engine.kv_cache_tokens),
    ):
        yield _gauge(name, documentation, [({}, value)])
    yield _gauge("phase", "1 for the phase that the node is in.", _phases(report.phase, {}))
    peers = [(one, {"address": one.address, "rank": str(one.rank)}) for one in report.peers]
    up = ((labels, one.contact is Contact.ANSWERS) for one, labels in peers)
    yield _gauge("peer_up", "Whether the agent of another node answers.", up)
    phases = (sample for one, labels in peers if one.report for sample in _phases(one.report.phase, labels))
    yield _gauge("peer_phase", "1 for the last known phase of another node.", phases)


def _phases(at: Phase, labels: Mapping[str, str]) -> Samples:
    return (({**labels, "phase": phase.value}, phase is at) for phase in Phase)


def _gauge(name: str, documentation: str, samples: Samples) -> Metric:
    from prometheus_client.metrics_core import GaugeMetricFamily

    family = GaugeMetricFamily(f"sparkd_{name}", documentation)
    for labels, value in samples:
        if value is not None:
            family.add_sample(family.name, {key: _clean(text) for key, text in labels.items()}, float(value))
    return family


def _clean(label: str) -> str:
    """A name may hold a lone surrogate, which the library cannot encode."""
    return label[:LABEL_LIMIT].encode("utf-8", "backslashreplace").decode()
