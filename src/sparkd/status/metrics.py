"""The report for Prometheus, in text format 0.0.4. Unknown values are left out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime

from prometheus_client import CONTENT_TYPE_PLAIN_0_0_4 as CONTENT_TYPE
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.metrics_core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from sparkd.status.model import Contact, NodeReport, Phase, seconds_since

__all__ = ["CONTENT_TYPE", "render"]

LABEL_LIMIT = 200
Samples = Iterable[tuple[Mapping[str, str], float | None]]


def render(report: NodeReport, now: datetime, started_at_seconds: float | None) -> str:
    """`started_at_seconds`: when the agent began, in seconds since 1970; None where that is not known."""

    class Gauges(Collector):
        def collect(self) -> Iterator[Metric]:
            return (family for family in _families(report, now, started_at_seconds) if family.samples)

    registry = CollectorRegistry()
    registry.register(Gauges())
    return generate_latest(registry).decode()


def _families(report: NodeReport, now: datetime, started_at_seconds: float | None) -> Iterator[Metric]:
    memory, engine = report.memory, report.engine
    names = {"version": report.version, "node": report.node, "role": report.role, "rank": str(report.rank)}
    info = {**names, "address": report.address, "plan_digest": report.plan_digest}
    yield _gauge("info", "What runs on this node; always 1.", [(info, 1)])
    total, available = (memory.total_bytes, memory.available_bytes) if memory else (None, None)
    for name, documentation, value in (
        ("start_time_seconds", "Start of the agent, since 1970.", started_at_seconds),
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
    family = GaugeMetricFamily(f"sparkd_{name}", documentation)
    for labels, value in samples:
        if value is not None:
            family.add_sample(family.name, {key: _clean(text) for key, text in labels.items()}, float(value))
    return family


def _clean(label: str) -> str:
    """A name may hold a lone surrogate, which the library cannot encode."""
    return label[:LABEL_LIMIT].encode("utf-8", "backslashreplace").decode()
