"""The report as Prometheus reads it: text format 0.0.4.

Rendered here: prometheus_client would cost the agent 1 MiB and every start 20 to 55 ms, for one page of gauges.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime

from msgspec import Struct, field

from sparkd.report.ages import seconds_since
from sparkd.report.node_report import Contact, NodeReport, Phase

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Sample(Struct, frozen=True):
    value: float
    labels: Mapping[str, str] = field(default_factory=dict)


class Gauge(Struct, frozen=True):
    """`name` without its prefix. Without samples it is left out."""

    name: str
    help: str
    samples: tuple[Sample, ...]


def render(report: NodeReport, now: datetime, started_at_seconds: float | None) -> str:
    """`started_at_seconds`: when the agent began, in seconds since 1970; None where that is not known."""
    return "".join(f"{line}\n" for gauge in _gauges(report, now, started_at_seconds) for line in _lines(gauge))


def _gauges(report: NodeReport, now: datetime, started_at_seconds: float | None) -> Iterator[Gauge]:
    names = {"version": report.version, "node": report.node, "role": report.role, "rank": str(report.rank)}
    info = {**names, "address": report.address, "plan_digest": report.plan_digest}
    yield Gauge("info", "What runs on this node; always 1.", (Sample(1, info),))
    yield Gauge("start_time_seconds", "Start of the agent, since 1970.", _known(started_at_seconds))
    yield Gauge("phase", "1 for the phase that the node is in.", tuple(_phases(report.phase, {})))
    yield Gauge("phase_seconds", "Time in this phase.", _known(seconds_since(report.since, now)))
    memory, engine = report.memory, report.engine
    total, available = (memory.total_bytes, memory.available_bytes) if memory else (None, None)
    yield Gauge("memory_total_bytes", "Memory of the node.", _known(total))
    yield Gauge("memory_available_bytes", "Memory that could be had without swapping.", _known(available))
    yield Gauge("engine_progress_ratio", "Progress of the step of the load, 0 to 1.", _known(engine.progress))
    yield Gauge("kv_cache_tokens", "Size of the KV cache.", _known(engine.kv_cache_tokens))
    peers = [(one, {"address": one.address, "rank": str(one.rank)}) for one in report.peers]
    up = tuple(Sample(one.contact is Contact.ANSWERS, labels) for one, labels in peers)
    yield Gauge("peer_up", "Whether the agent of another node answers.", up)
    phases = tuple(sample for one, at in peers if one.report for sample in _phases(one.report.phase, at))
    yield Gauge("peer_phase", "1 for the last known phase of another node.", phases)


def _known(value: float | None) -> tuple[Sample, ...]:
    return () if value is None else (Sample(value),)


def _phases(at: Phase, labels: Mapping[str, str]) -> Iterator[Sample]:
    return (Sample(phase is at, {**labels, "phase": phase.value}) for phase in Phase)


def _lines(gauge: Gauge) -> Iterator[str]:
    if not gauge.samples:
        return
    name = f"sparkd_{gauge.name}"
    yield f"# HELP {name} {gauge.help}"
    yield f"# TYPE {name} gauge"
    for sample in gauge.samples:
        labels = ",".join(f'{key}="{_escaped(value)}"' for key, value in sample.labels.items())
        yield f"{name}{{{labels}}} {_number(sample.value)}" if labels else f"{name} {_number(sample.value)}"


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


def _number(value: float) -> str:
    return repr(value) if isinstance(value, float) else str(int(value))
