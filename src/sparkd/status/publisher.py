"""Keeps the NodeReport and hands each new one to its sinks."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import TypedDict, Unpack

from msgspec.structs import replace

from sparkd.status.model import EngineReport, FindingReport, MemoryReport, NodeReport, PeerStatus, Phase, utc_now

PACE_SECONDS = 1.0
"""Progress within a phase is published at most this often; a new phase, epoch or plan, here or there, at once."""
NOISE_BYTES = 64 << 20
"""Smaller changes of the available memory alone are noise: 0.5 ms of CPU at each look at a serving engine."""

Sink = Callable[[NodeReport], None]


class Changes(TypedDict, total=False):
    phase: Phase
    message: str
    last_cause: str
    findings: tuple[FindingReport, ...]
    engine: EngineReport
    memory: MemoryReport | None
    epoch: str
    plan_digest: str
    transport: str
    versions: Mapping[str, str]
    peers: tuple[PeerStatus, ...]


class Reporter:
    """For the main thread only."""

    def __init__(self, first: NodeReport, sinks: tuple[Sink, ...], clock: Callable[[], float] = time.monotonic) -> None:
        self.report = first
        self._sinks = sinks
        self._clock = clock
        self._published: NodeReport | None = None
        self._published_at = 0.0

    def update(self, **changes: Unpack[Changes]) -> None:
        """Change the report, and hand it to the sinks at their pace."""
        before = self.report
        self.report = replace(before, **changes)
        if self.report.phase is not before.phase:
            self.report = replace(self.report, since=utc_now())
        due = self._clock() - self._published_at >= PACE_SECONDS and _differ(self.report, self._published)
        if due or _urgent(self.report) != _urgent(before):
            self.publish()

    def publish(self) -> None:
        """Hand the report to every sink now."""
        self._published, self._published_at = self.report, self._clock()
        for sink in self._sinks:
            sink(self.report)


def _differ(report: NodeReport, published: NodeReport | None) -> bool:
    now, before = report.memory, published and published.memory
    if now and before and abs(now.available_bytes - before.available_bytes) < NOISE_BYTES:
        report = replace(report, memory=before)
    return report != published


def _urgent(report: NodeReport) -> object:
    """What is published at once."""
    peers = tuple((peer.contact, peer.report and peer.report.phase) for peer in report.peers)
    return report.phase, report.epoch, report.plan_digest, peers


def status_line(report: NodeReport) -> str:
    """The line of STATUS=."""
    return f"{report.phase.value}: {report.message}" if report.message else report.phase.value
