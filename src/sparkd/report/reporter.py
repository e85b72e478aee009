"""Keeps the NodeReport and hands each new one to its sinks."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import TypedDict, Unpack

from msgspec.structs import replace

from sparkd.report.node_report import (
    EngineReport,
    FindingReport,
    MemoryReport,
    NodeReport,
    PeerReport,
    Phase,
    utc_now,
)

PACE_SECONDS = 1.0
"""Progress within a phase is told at most this often; a new phase, epoch or plan, here or there, at once."""

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
    versions: Mapping[str, str]
    peers: tuple[PeerReport, ...]


class Reporter:
    """For the main thread only."""

    def __init__(self, first: NodeReport, sinks: tuple[Sink, ...]) -> None:
        self.report = first
        self._sinks = sinks
        self._told_at = 0.0
        self._untold = True

    def update(self, **changes: Unpack[Changes]) -> None:
        """Change the report, and tell the sinks of it at their pace."""
        before = self.report
        self.report = replace(before, **changes)
        new_phase = self.report.phase is not before.phase
        if new_phase:
            self.report = replace(self.report, since=utc_now())
        self._untold = self._untold or self.report != before
        if _news(self.report) != _news(before) or (self._untold and time.monotonic() - self._told_at >= PACE_SECONDS):
            self.tell()

    def tell(self) -> None:
        """Hand the report to every sink now."""
        self._told_at = time.monotonic()
        self._untold = False
        for sink in self._sinks:
            sink(self.report)


def _news(report: NodeReport) -> object:
    """What is told at once."""
    peers = tuple((peer.contact, peer.report and peer.report.phase) for peer in report.peers)
    return report.phase, report.epoch, report.plan_digest, peers


def status_line(report: NodeReport) -> str:
    """The line of STATUS=."""
    return f"{report.phase.value}: {report.message}" if report.message else report.phase.value
