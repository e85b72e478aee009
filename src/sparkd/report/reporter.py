"""Keeps the NodeReport and hands each new one to its sinks."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from typing import TypedDict, Unpack

from sparkd.report.node_report import EngineReport, FindingReport, MemoryReport, NodeReport, Phase

PACE_SECONDS = 1.0
"""Progress within a phase is told at most this often; a new phase, at once."""

Sink = Callable[[NodeReport], None]


class Changes(TypedDict, total=False):
    phase: Phase
    message: str
    last_cause: str
    findings: tuple[FindingReport, ...]
    engine: EngineReport
    memory: MemoryReport | None


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
            self.report = replace(self.report, since=datetime.now(UTC).isoformat(timespec="milliseconds"))
        self._untold = self._untold or self.report != before
        if new_phase or (self._untold and time.monotonic() - self._told_at >= PACE_SECONDS):
            self.tell()

    def tell(self) -> None:
        """Hand the report to every sink now."""
        self._told_at = time.monotonic()
        self._untold = False
        for sink in self._sinks:
            sink(self.report)


def status_line(report: NodeReport) -> str:
    """The line of STATUS=."""
    return f"{report.phase.value}: {report.message}" if report.message else report.phase.value
