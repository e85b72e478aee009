"""The page that Prometheus reads. Imported at the first one: 16 ms of CPU that a node without Prometheus saves."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from functools import cache

from msgspec import Struct, toml
from prometheus_client import CONTENT_TYPE_PLAIN_0_0_4, generate_latest
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.registry import Collector

from sparkd.base.host.kernel_events import COUNTED
from sparkd.base.lib import read_data
from sparkd.base.lib.errors import Action, Cause, find_action
from sparkd.base.status.bounds import ITEMS_LIMIT
from sparkd.base.status.model import DAY_SECONDS, Contact, NodeReport, Phase, seconds_since

LABEL_LIMIT = 200
LEVELS = ("ok", "warn", "block", "unknown", "skipped")
PHASES, CONTACTS = ([member.value for member in states] for states in (Phase, Contact))
CAUSES = frozenset(map(str, Cause))
ACTIONS = frozenset((*map(str, Action), ""))
OTHER = "other"
"""Stands for a label's value that this version does not know: a label takes no values from outside."""


class Metric(Struct, frozen=True, forbid_unknown_fields=True):
    name: str
    help: str
    counter: bool = False
    multiply: int = 1
    divide: int = 1
    states: tuple[str, ...] = ()


METRICS = toml.decode(read_data("metrics.toml"), type=dict[str, dict[str, Metric]])
Samples = Iterable[tuple[Mapping[str, str], float | None]]


def render_metrics(report: NodeReport, now: datetime) -> tuple[str, str]:
    """A page in text format 0.0.4, without unknown values, and its content type."""

    class Families(Collector):
        def collect(self) -> Iterator[Family]:
            return (family for family in families(report, now) if family.samples)

    return generate_latest(Families()).decode(), CONTENT_TYPE_PLAIN_0_0_4


def families(report: NodeReport, now: datetime) -> Iterator[Family]:
    """All metrics, also those that the report has no sample of."""
    names = {"version": report.version, "node": report.node, "role": report.role, "rank": str(report.rank)}
    info = {**names, "address": report.address, "plan_digest": report.plan_digest}
    yield _gauge("info", "What runs on this node; always 1.", [(info, 1)])
    yield _value("start_time_seconds", "Start of the agent, since 1970.", _started_at(report.start_time))
    yield from _phases(report, now)
    yield from _declared("memory", report.memory)
    yield from _declared("engine", report.engine)
    yield from _declared("activity", report.activity)
    documentation = "Whether the answers of this launch made sense in its smoke test."
    yield _value("smoke_passed", documentation, report.smoke_passed)
    yield from _declared("health", report.health)
    yield from _declared("gpu", report.gpu)
    documentation = "Findings of preflight and of the watch since then, by id, level and action."
    yield _gauge("findings", documentation, _findings(report))
    yield _gauge("restarts_last_day", "Ends that nobody requested, in the day before this agent.", _ends(report, now))
    documentation = "Launches of the engine on this node before this agent."
    yield _counter("launches", documentation, [({}, report.launches)])
    yield _counter("ends", "Ends of those launches by cause.", _all_ends(report) if report.launches is not None else ())
    documentation = "Messages of the kernel's log that matter, since the agent began."
    yield _counter("kernel_messages", documentation, _kernel_messages(report))
    yield from _peers(report)


def _findings(report: NodeReport) -> Samples:
    counts = Counter[tuple[str, str, str]]()
    for finding in report.findings[:ITEMS_LIMIT]:
        counts[finding.id, finding.level if finding.level in LEVELS else OTHER, _action(finding.action)] += 1
    return (({"id": id_, "level": level, "action": action}, count) for (id_, level, action), count in counts.items())


def _phases(report: NodeReport, now: datetime) -> Iterator[Family]:
    yield _gauge("phase", "1 for the phase that the node is in.", _states("phase", PHASES, report.phase.value))
    passed = seconds_since(report.since, now)
    yield _value("phase_seconds", "Time in this phase.", passed)
    spent = {**report.phase_seconds, report.phase.value: report.phase_seconds.get(report.phase.value, 0)}
    spent[report.phase.value] += passed or 0
    times = (({"phase": phase}, max(0.0, seconds)) for phase, seconds in spent.items() if phase in PHASES)
    yield _counter("phase_time_seconds", "Time in each phase, of this agent.", times)
    ended = [({"cause": _cause(report.cause), "action": _action(report.action)}, 1)] if report.cause else []
    yield _gauge("failed", "1 for the cause of the end that the agent is about to come to, and its action.", ended)
    blocked = [({"action": _action(report.action)}, 1)] if report.phase is Phase.BLOCKED else []
    yield _gauge("blocked", "1 for the action that is required where the node is blocked.", blocked)


def _declared(part: str, figures: object) -> Iterator[Family]:
    """The metrics of a part of the report, without samples where that is None."""
    for field, metric in METRICS[part].items():
        value = None if figures is None else getattr(figures, field)
        if metric.states:
            states = _states("state", metric.states, value) if value in metric.states else ()
            yield _gauge(metric.name, metric.help, states)
        elif metric.counter:
            yield _counter(metric.name, metric.help, [({}, None if value is None else max(0, value))])
        else:
            yield _value(metric.name, metric.help, None if value is None else value * metric.multiply / metric.divide)


def _ends(report: NodeReport, now: datetime) -> Samples:
    """The report's ends, as of the agent's begin, without those of which the last one is older now."""
    counts: Counter[str] = Counter()
    for restarts in report.restarts:
        if (age := seconds_since(restarts.last, now)) is not None and age < DAY_SECONDS:
            counts[_cause(restarts.cause)] += restarts.count
    return (({"cause": cause, "action": find_action(cause)}, count) for cause, count in counts.items())


def _all_ends(report: NodeReport) -> Samples:
    """Ends by each cause from the begin, because Prometheus does not count a series that appears."""
    counts = dict.fromkeys((*map(str, Cause), OTHER), 0)
    for cause, count in report.ends.items():
        counts[_cause(cause)] += max(0, count)
    return (({"cause": cause, "action": find_action(cause)}, count) for cause, count in counts.items())


def _kernel_messages(report: NodeReport) -> Samples:
    counts = report.kernel_counts
    return (({"kind": kind, "action": action}, max(0, counts.get(f"{kind} {action}", 0))) for kind, action in COUNTED)


def _peers(report: NodeReport) -> Iterator[Family]:
    peers = [(peer, {"address": peer.address, "rank": str(peer.rank)}) for peer in report.peers]
    heard = [(peer.report, labels) for peer, labels in peers if peer.report]
    up = ((labels, peer.contact is Contact.ANSWERS) for peer, labels in peers)
    yield _gauge("peer_up", "Whether the agent of another node answers.", up)
    contacts = (state for peer, labels in peers for state in _states("contact", CONTACTS, peer.contact.value, labels))
    yield _gauge("peer_contact", "1 for the contact with another node.", contacts)
    ahead = ((labels, peer.clock_ahead_seconds) for peer, labels in peers)
    yield _gauge("peer_clock_ahead_seconds", "How far the clock of another node is ahead of this one's.", ahead)
    phases = (state for own, labels in heard for state in _states("phase", PHASES, own.phase.value, labels))
    yield _gauge("peer_phase", "1 for the last known phase of another node.", phases)
    ended = (
        ({**labels, "cause": _cause(own.cause), "action": _action(own.action)}, 1) for own, labels in heard if own.cause
    )
    yield _gauge("peer_failed", "1 for the cause of the end in the last report of another node, and its action.", ended)


def _states(label: str, states: Iterable[str], at: str, labels: Mapping[str, str] | None = None) -> Samples:
    """A state set, as a page of version 0.0.4 has one."""
    return (({**(labels or {}), label: state}, state == at) for state in states)


def _cause(text: str) -> str:
    return text if text in CAUSES else OTHER


def _action(text: str) -> str:
    """Empty where none is known, as in a report of an earlier version."""
    return text if text in ACTIONS else OTHER


@cache
def _started_at(ticks: int) -> float | None:
    """Start of the agent, since 1970; None where the report does not say. Read once: a clock that is set would change
    it.
    """
    if not ticks:
        return None
    since_boot = ticks / os.sysconf("SC_CLK_TCK")
    return round(time.time() - time.clock_gettime(time.CLOCK_BOOTTIME) + since_boot, 1)


def _value(name: str, documentation: str, value: float | None) -> Family:
    return _gauge(name, documentation, [({}, value)])


def _gauge(name: str, documentation: str, samples: Samples) -> Family:
    return _fill(GaugeMetricFamily(f"sparkd_{name}", documentation), "", samples)


def _counter(name: str, documentation: str, samples: Samples) -> Family:
    """The format adds `_total` to its name."""
    return _fill(CounterMetricFamily(f"sparkd_{name}", documentation), "_total", samples)


def _fill(family: Family, suffix: str, samples: Samples) -> Family:
    for labels, value in samples:
        if value is not None:
            family.add_sample(family.name + suffix, {key: _clean(text) for key, text in labels.items()}, float(value))
    return family


def _clean(label: str) -> str:
    """A name may hold a lone surrogate, which the library cannot encode."""
    return label[:LABEL_LIMIT].encode("utf-8", "backslashreplace").decode()
