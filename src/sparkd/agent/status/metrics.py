"""The page for Prometheus. It is imported for the first request: a node without Prometheus saves 16 ms of CPU."""

import os
import time
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from datetime import datetime
from functools import cache
from itertools import chain

from msgspec import Struct, toml
from prometheus_client import CONTENT_TYPE_PLAIN_0_0_4, generate_latest
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.registry import Collector

from sparkd.base.host.kernel_events import COUNTED
from sparkd.base.lib import read_data
from sparkd.base.lib.errors import Action, Cause, find_action
from sparkd.base.lib.times import DAY_SECONDS, seconds_since
from sparkd.base.status.bounds import ITEMS_LIMIT
from sparkd.base.status.model import Contact, NodeReport, Phase

LEVELS = ("ok", "warn", "block", "unknown", "skipped")
PHASES, CONTACTS = ([member.value for member in states] for states in (Phase, Contact))
CAUSES = frozenset(map(str, Cause))
ACTIONS = frozenset((*map(str, Action), ""))
OTHER = "other"
"""Stands for a label's value that this version does not know: the values of a label are a closed list."""


class Metric(Struct, frozen=True, forbid_unknown_fields=True):
    """A metric of metrics.toml, made from one field of a part of the report, or computed here from all of it."""

    name: str
    help: str
    counter: bool = False
    multiply: int = 1
    divide: int = 1
    states: tuple[str, ...] = ()
    """The field's values, where it is one of a set."""


METRICS = toml.decode(read_data("metrics.toml"), type=dict[str, dict[str, Metric]])
Samples = Iterable[tuple[Mapping[str, str], float | None]]
"""Labels and value of each; None where that is unknown."""


def render_metrics(report: NodeReport, now: datetime) -> tuple[str, str]:
    """The page in text format 0.0.4, without unknown values, and its content type."""

    class Families(Collector):
        def collect(self) -> Iterator[Family]:
            return (family for family in make_families(report, now) if family.samples)

    return generate_latest(Families()).decode(), CONTENT_TYPE_PLAIN_0_0_4


def make_families(report: NodeReport, now: datetime) -> Iterator[Family]:
    """All metrics, also those of which the report has no sample."""
    names = {"version": report.version, "node": report.node, "role": report.role, "rank": str(report.rank)}
    info = {**names, "address": report.address, "plan_digest": report.plan_digest}
    yield _make_computed("info", [(info, 1)])
    yield _make_computed("start_time_seconds", [({}, _compute_start(report.start_time))])
    yield from _make_phase_metrics(report, now)
    yield from _make_declared_metrics("memory", report.memory)
    yield from _make_declared_metrics("engine", report.engine)
    yield from _make_declared_metrics("activity", report.activity)
    yield _make_computed("smoke_passed", [({}, report.smoke_passed)])
    yield from _make_declared_metrics("health", report.health)
    yield from _make_declared_metrics("gpu", report.gpu)
    yield _make_computed("findings", _count_findings(report))
    yield _make_computed("restarts_last_day", _count_recent_ends(report, now))
    yield _make_computed("launches", [({}, report.launches)])
    yield _make_computed("ends", _count_ends(report) if report.launches is not None else ())
    yield _make_computed("kernel_messages", _count_kernel_messages(report))
    yield from _make_peer_metrics(report)


def _count_findings(report: NodeReport) -> Samples:
    counts = Counter[tuple[str, str, str]]()
    for finding in report.findings[:ITEMS_LIMIT]:
        counts[finding.id, _limit_to(LEVELS, finding.level), _limit_to(ACTIONS, finding.action)] += 1
    return (({"id": id_, "level": level, "action": action}, count) for (id_, level, action), count in counts.items())


def _make_phase_metrics(report: NodeReport, now: datetime) -> Iterator[Family]:
    yield _make_computed("phase", _make_state_samples("phase", PHASES, report.phase.value))
    phase_seconds = seconds_since(report.since, now)
    yield _make_computed("phase_seconds", [({}, phase_seconds)])
    seconds_before = report.phase_seconds.get(report.phase.value, 0)
    seconds_by_phase = {**report.phase_seconds, report.phase.value: seconds_before + (phase_seconds or 0)}
    times = (({"phase": phase}, max(0.0, seconds)) for phase, seconds in seconds_by_phase.items() if phase in PHASES)
    yield _make_computed("phase_time_seconds", times)
    labels = {"cause": _limit_to(CAUSES, report.cause), "action": _limit_to(ACTIONS, report.action)}
    yield _make_computed("failed", [(labels, 1)] if report.cause else [])
    blocked = [({"action": _limit_to(ACTIONS, report.action)}, 1)] if report.phase is Phase.BLOCKED else []
    yield _make_computed("blocked", blocked)


def _make_declared_metrics(part: str, figures: object) -> Iterator[Family]:
    """The metrics that metrics.toml declares for a part of the report; without samples where the part is None."""
    for field, metric in METRICS[part].items():
        value = None if figures is None else getattr(figures, field)
        if metric.states:
            states = _make_state_samples("state", metric.states, value) if value in metric.states else ()
            yield _make_family(metric, states)
            continue
        scaled_value = None if value is None else value * metric.multiply / metric.divide
        yield _make_family(metric, [({}, max(0, scaled_value) if scaled_value and metric.counter else scaled_value)])


def _count_recent_ends(report: NodeReport, now: datetime) -> Samples:
    """Ends in the day before the agent began, by cause. A cause is left out when its last end is over a day old now."""
    counts: Counter[str] = Counter()
    for restarts in report.restarts:
        if (age := seconds_since(restarts.last, now)) is not None and age < DAY_SECONDS:
            counts[_limit_to(CAUSES, restarts.cause)] += restarts.count
    return (({"cause": cause, "action": find_action(cause)}, count) for cause, count in counts.items())


def _count_ends(report: NodeReport) -> Samples:
    """Ends by cause. Every cause has a sample from the start: Prometheus counts no series that appears later."""
    counts = dict.fromkeys((*map(str, Cause), OTHER), 0)
    for cause, count in report.ends.items():
        counts[_limit_to(CAUSES, cause)] += max(0, count)
    return (({"cause": cause, "action": find_action(cause)}, count) for cause, count in counts.items())


def _count_kernel_messages(report: NodeReport) -> Samples:
    counts = report.kernel_counts
    return (({"kind": kind, "action": act}, max(0, counts.get(f"{kind} {act}", 0))) for kind, act in COUNTED)


def _make_peer_metrics(report: NodeReport) -> Iterator[Family]:
    peers = [(peer, {"address": peer.address, "rank": str(peer.rank)}) for peer in report.peers]
    reports = [(peer.report, labels) for peer, labels in peers if peer.report]
    answers = ((labels, peer.contact is Contact.ANSWERS) for peer, labels in peers)
    yield _make_computed("peer_up", answers)
    contacts = (_make_state_samples("contact", CONTACTS, peer.contact.value, labels) for peer, labels in peers)
    yield _make_computed("peer_contact", chain.from_iterable(contacts))
    clocks = ((labels, peer.clock_ahead_seconds) for peer, labels in peers)
    yield _make_computed("peer_clock_ahead_seconds", clocks)
    phases = (_make_state_samples("phase", PHASES, known.phase.value, labels) for known, labels in reports)
    yield _make_computed("peer_phase", chain.from_iterable(phases))
    failures = (
        ({**labels, "cause": _limit_to(CAUSES, known.cause), "action": _limit_to(ACTIONS, known.action)}, 1)
        for known, labels in reports
        if known.cause
    )
    yield _make_computed("peer_failed", failures)


def _make_state_samples(
    label: str, states: Iterable[str], current: str, labels: Mapping[str, str] | None = None
) -> Samples:
    """One sample for each state, 1 for the current one: format 0.0.4 has no state sets."""
    return (({**(labels or {}), label: state}, state == current) for state in states)


def _limit_to(known: Collection[str], text: str) -> str:
    """The text, if this version knows it. No action is known, too: reports of earlier versions have none."""
    return text if text in known else OTHER


@cache
def _compute_start(ticks: int) -> float | None:
    """Start of the agent in seconds since 1970; None without `ticks`, its start since boot.

    Computed once, because it would change when the clock is set.
    """
    if not ticks:
        return None
    since_boot = ticks / os.sysconf("SC_CLK_TCK")
    return round(time.time() - time.clock_gettime(time.CLOCK_BOOTTIME) + since_boot, 1)


def _make_computed(name: str, samples: Samples) -> Family:
    return _make_family(METRICS["report"][name], samples)


def _make_family(metric: Metric, samples: Samples) -> Family:
    """The metric with its samples. The format adds `_total` to a counter's name."""
    kind, suffix = (CounterMetricFamily, "_total") if metric.counter else (GaugeMetricFamily, "")
    family: Family = kind(f"sparkd_{metric.name}", metric.help)
    for labels, value in samples:
        if value is not None:
            bounded_labels = {key: _bound_label(text) for key, text in labels.items()}
            family.add_sample(family.name + suffix, bounded_labels, float(value))
    return family


def _bound_label(label: str) -> str:
    """Cut a label's value, and escape lone surrogates, which the library can't encode."""
    return label[:200].encode("utf-8", "backslashreplace").decode()
