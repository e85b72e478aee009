"""The report as Prometheus reads it: text format 0.0.4."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime

from prometheus_client import CONTENT_TYPE_PLAIN_0_0_4 as CONTENT_TYPE
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.metrics_core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from sparkd.report.ages import seconds_since
from sparkd.report.node_report import Contact, NodeReport, Phase

__all__ = ["CONTENT_TYPE", "render"]

LABEL_LIMIT = 200
Labels = Mapping[str, str]
Samples = Iterable[tuple[Labels, float | None]]


def render(report: NodeReport, now: datetime, started_at_seconds: float | None) -> str:
    """`started_at_seconds`: when the agent began, in seconds since 1970; None where that is not known."""
    registry = CollectorRegistry()
    registry.register(ReportCollector(report, now, started_at_seconds))
    return generate_latest(registry).decode()


class ReportCollector(Collector):
    """The gauges of one report. What is not known is left out."""

    def __init__(self, report: NodeReport, now: datetime, started_at_seconds: float | None) -> None:
        self._report, self._now, self._started_at_seconds = report, now, started_at_seconds

    def collect(self) -> Iterator[Metric]:
        return (family for family in self._families() if family.samples)

    def _families(self) -> Iterator[Metric]:
        report, memory, engine = self._report, self._report.memory, self._report.engine
        names = {"version": report.version, "node": report.node, "role": report.role, "rank": str(report.rank)}
        info = {**names, "address": report.address, "plan_digest": report.plan_digest}
        yield _gauge("info", "What runs on this node; always 1.", [(info, 1)])
        yield _gauge("start_time_seconds", "Start of the agent, since 1970.", [({}, self._started_at_seconds)])
        yield _gauge("phase", "1 for the phase that the node is in.", _phases(report.phase, {}))
        yield _gauge("phase_seconds", "Time in this phase.", [({}, seconds_since(report.since, self._now))])
        total, available = (memory.total_bytes, memory.available_bytes) if memory else (None, None)
        yield _gauge("memory_total_bytes", "Memory of the node.", [({}, total)])
        yield _gauge("memory_available_bytes", "Memory that could be had without swapping.", [({}, available)])
        yield _gauge("engine_progress_ratio", "Progress of the step of the load, 0 to 1.", [({}, engine.progress)])
        yield _gauge("kv_cache_tokens", "Size of the KV cache.", [({}, engine.kv_cache_tokens)])
        peers = [(one, {"address": one.address, "rank": str(one.rank)}) for one in report.peers]
        up = ((labels, one.contact is Contact.ANSWERS) for one, labels in peers)
        yield _gauge("peer_up", "Whether the agent of another node answers.", up)
        phases = (sample for one, labels in peers if one.report for sample in _phases(one.report.phase, labels))
        yield _gauge("peer_phase", "1 for the last known phase of another node.", phases)


def _phases(at: Phase, labels: Labels) -> Samples:
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
