"""The page that Prometheus reads. Imported at the first one: 16 ms of CPU that a node without Prometheus saves."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from functools import cache

from prometheus_client import CONTENT_TYPE_PLAIN_0_0_4, generate_latest
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from sparkd.lib.errors import Cause
from sparkd.status.bounds import ITEMS_LIMIT
from sparkd.status.figures import HealthReport
from sparkd.status.model import GUARD_STATES, Contact, NodeReport, Phase, seconds_since

LABEL_LIMIT = 200
LEVELS = ("ok", "warn", "block", "unknown", "skipped")
PHASES, CONTACTS = ([one.value for one in each] for each in (Phase, Contact))
CAUSES = frozenset(map(str, Cause))
OTHER = "other"
"""Instead of a label's value that this version does not know: a label takes no values from outside."""
DAY_SECONDS = 24 * 3600
Samples = Iterable[tuple[Mapping[str, str], float | None]]


def render_metrics(report: NodeReport, now: datetime) -> tuple[str, str]:
    """A page in text format 0.0.4, without unknown values, and its content type."""

    class Families(Collector):
        def collect(self) -> Iterator[Metric]:
            return (family for family in families(report, now) if family.samples)

    return generate_latest(Families()).decode(), CONTENT_TYPE_PLAIN_0_0_4


def families(report: NodeReport, now: datetime) -> Iterator[Metric]:
    """All metrics, also those that the report has no sample of."""
    names = {"version": report.version, "node": report.node, "role": report.role, "rank": str(report.rank)}
    info = {**names, "address": report.address, "plan_digest": report.plan_digest}
    yield _gauge("info", "What runs on this node; always 1.", [(info, 1)])
    yield _value("start_time_seconds", "Start of the agent, since 1970.", _started_at(report.start_time))
    yield from _phases(report, now)
    yield from _memory(report)
    yield from _engine(report)
    yield from _health(report)
    yield from _gpu(report)
    found = Counter((one.id, one.level if one.level in LEVELS else OTHER) for one in report.findings[:ITEMS_LIMIT])
    findings = (({"id": id_, "level": level}, count) for (id_, level), count in found.items())
    yield _gauge("findings", "Findings of preflight and of the watch since then, by id and level.", findings)
    yield _gauge("restarts_last_day", "Ends that nobody requested, in the day before this agent.", _ends(report, now))
    documentation = "Launches of the engine on this node before this agent."
    yield _counter("launches", documentation, [({}, report.launches)])
    yield _counter("ends", "Ends of those launches by cause.", _all_ends(report) if report.launches is not None else ())
    yield from _peers(report)


def _phases(report: NodeReport, now: datetime) -> Iterator[Metric]:
    yield _gauge("phase", "1 for the phase that the node is in.", _states("phase", PHASES, report.phase.value))
    passed = seconds_since(report.since, now)
    yield _value("phase_seconds", "Time in this phase.", passed)
    spent = {**report.phase_seconds, report.phase.value: report.phase_seconds.get(report.phase.value, 0)}
    spent[report.phase.value] += passed or 0
    times = (({"phase": phase}, max(0.0, seconds)) for phase, seconds in spent.items() if phase in PHASES)
    yield _counter("phase_time_seconds", "Time in each phase, of this agent.", times)
    ended = [({"cause": _cause(report.cause)}, 1)] if report.cause else []
    yield _gauge("failed", "1 for the cause of the end that the agent is about to come to.", ended)


def _memory(report: NodeReport) -> Iterator[Metric]:
    memory = report.memory
    documentation = "Memory that could be had without swapping."
    yield _value("memory_total_bytes", "Memory of the node.", memory.total_bytes if memory else None)
    yield _value("memory_available_bytes", documentation, memory.available_bytes if memory else None)
    documentation = "Available memory below which the engine is killed."
    yield _value("memory_floor_bytes", documentation, memory.floor_bytes if memory else None)
    guard = _states("state", GUARD_STATES, memory.guard) if memory and memory.guard in GUARD_STATES else ()
    yield _gauge("memory_guard", "1 for the state of the memory guard, while there is an engine.", guard)
    documentation = "Page cache of the model's files that this agent gave back."
    yield _counter("page_cache_released_bytes", documentation, [({}, max(0, memory.released_bytes))] if memory else [])


def _engine(report: NodeReport) -> Iterator[Metric]:
    engine, activity = report.engine, report.activity
    yield _value("engine_progress_ratio", "Progress of the step of the load, 0 to 1.", engine.progress)
    documentation = "From the container's start to the first completion, by earlier loads or the recipe."
    yield _value("engine_expected_load_seconds", documentation, engine.expected_seconds)
    yield _value("kv_cache_tokens", "Size of the KV cache.", engine.kv_cache_tokens)
    for name, documentation, field in (
        ("requests_running", "Requests that the engine works on.", "running"),
        ("requests_waiting", "Requests in the engine's queue.", "waiting"),
        ("input_tokens_per_second", "Prompt tokens a second.", "input_tokens_per_second"),
        ("output_tokens_per_second", "Generated tokens a second.", "output_tokens_per_second"),
        ("kv_cache_used_ratio", "Share of the KV cache in use, 0 to 1.", "kv_cache_use"),
        ("prefix_cache_hit_ratio", "Share of prompt tokens from the prefix cache, in ten minutes.", "prefix_hit_rate"),
        ("draft_acceptance_ratio", "Share of speculated tokens accepted, in ten minutes.", "draft_acceptance"),
    ):
        yield _value(name, documentation, None if activity is None else getattr(activity, field))


def _health(report: NodeReport) -> Iterator[Metric]:
    smoke_passed, health = report.smoke_passed, report.health or HealthReport()
    yield _value("smoke_passed", "Whether the answers of this launch made sense in its smoke test.", smoke_passed)
    yield _value("probe_seconds", "Of the last look at the engine's health and counters.", health.probe_seconds)
    yield _value(
        "canary_seconds", "Of the last request of one token, sent while no request moves.", health.canary_seconds
    )
    yield _value(
        "canary_timestamp_seconds", "When the last canary was answered or given up, since 1970.", health.canary_at
    )
    for name, documentation, count in (
        ("canaries", "Requests of one token by this agent to the engine that serves.", health.canaries),
        ("canary_failures", "Those that had no token.", health.canaries_failed),
    ):
        yield _counter(name, documentation, [({}, max(0, count))] if report.health else [])


def _gpu(report: NodeReport) -> Iterator[Metric]:
    gpu = report.gpu
    clock_mhz, busy_percent = (gpu.clock_mhz, gpu.busy_percent) if gpu else (None, None)
    clock_hertz = None if clock_mhz is None else clock_mhz * 1e6
    yield _value("gpu_clock_hertz", "Clock of the first GPU's processors.", clock_hertz)
    yield _value("gpu_power_watts", "Power that the first GPU takes.", gpu.power_watts if gpu else None)
    yield _value("gpu_temperature_celsius", "Temperature of the first GPU.", gpu.temperature_celsius if gpu else None)
    busy = None if busy_percent is None else busy_percent / 100
    yield _value("gpu_busy_ratio", "Share of time that the first GPU works, 0 to 1.", busy)


def _ends(report: NodeReport, now: datetime) -> Samples:
    """The report has them as of the agent's begin. Those of which the last one is older now are left out."""
    counts: Counter[str] = Counter()
    for one in report.restarts:
        if (age := seconds_since(one.last, now)) is not None and age < DAY_SECONDS:
            counts[_cause(one.cause)] += one.count
    return (({"cause": cause}, count) for cause, count in counts.items())


def _all_ends(report: NodeReport) -> Samples:
    """Each cause from the begin, because Prometheus does not count a series that appears."""
    counts = dict.fromkeys((*map(str, Cause), OTHER), 0)
    for cause, count in report.ends.items():
        counts[_cause(cause)] += max(0, count)
    return (({"cause": cause}, count) for cause, count in counts.items())


def _peers(report: NodeReport) -> Iterator[Metric]:
    peers = [(one, {"address": one.address, "rank": str(one.rank)}) for one in report.peers]
    heard = [(one.report, labels) for one, labels in peers if one.report]
    up = ((labels, one.contact is Contact.ANSWERS) for one, labels in peers)
    yield _gauge("peer_up", "Whether the agent of another node answers.", up)
    contacts = (sample for one, labels in peers for sample in _states("contact", CONTACTS, one.contact.value, labels))
    yield _gauge("peer_contact", "1 for the contact with another node.", contacts)
    ahead = ((labels, one.clock_ahead_seconds) for one, labels in peers)
    yield _gauge("peer_clock_ahead_seconds", "How far the clock of another node is ahead of this one's.", ahead)
    phases = (sample for one, labels in heard for sample in _states("phase", PHASES, one.phase.value, labels))
    yield _gauge("peer_phase", "1 for the last known phase of another node.", phases)
    ended = (({**labels, "cause": _cause(one.cause)}, 1) for one, labels in heard if one.cause)
    yield _gauge("peer_failed", "1 for the cause of the end in the last report of another node.", ended)


def _states(label: str, states: Iterable[str], at: str, labels: Mapping[str, str] | None = None) -> Samples:
    """A state set, as a page of version 0.0.4 has one."""
    return (({**(labels or {}), label: one}, one == at) for one in states)


def _cause(text: str) -> str:
    return text if text in CAUSES else OTHER


@cache
def _started_at(ticks: int) -> float | None:
    """Of the agent, since 1970; None where the report does not say. Once, for a clock that is set would change it."""
    if not ticks:
        return None
    since_boot = ticks / os.sysconf("SC_CLK_TCK")
    return round(time.time() - time.clock_gettime(time.CLOCK_BOOTTIME) + since_boot, 1)


def _value(name: str, documentation: str, value: float | None) -> Metric:
    return _gauge(name, documentation, [({}, value)])


def _gauge(name: str, documentation: str, samples: Samples) -> Metric:
    return _fill(GaugeMetricFamily(f"sparkd_{name}", documentation), "", samples)


def _counter(name: str, documentation: str, samples: Samples) -> Metric:
    """The format adds `_total` to its name."""
    return _fill(CounterMetricFamily(f"sparkd_{name}", documentation), "_total", samples)


def _fill(family: Metric, suffix: str, samples: Samples) -> Metric:
    for labels, value in samples:
        if value is not None:
            family.add_sample(family.name + suffix, {key: _clean(text) for key, text in labels.items()}, float(value))
    return family


def _clean(label: str) -> str:
    """A name may hold a lone surrogate, which the library cannot encode."""
    return label[:LABEL_LIMIT].encode("utf-8", "backslashreplace").decode()
