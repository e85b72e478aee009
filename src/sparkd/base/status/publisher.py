"""Keeps the node's report, with the memory use of the last minutes, and passes it without secrets to the sinks."""

import time
from collections.abc import Callable, Mapping
from typing import NamedTuple, TypedDict, Unpack

from msgspec.structs import replace

from sparkd.base.lib.redaction import Redaction
from sparkd.base.lib.times import utc_now
from sparkd.base.status.figures import ActivityReport, EngineReport, GpuReport, HealthReport
from sparkd.base.status.model import (
    IN_SERVICE,
    LIMIT_BYTES,
    FindingReport,
    MemoryReport,
    NodeReport,
    PeerStatus,
    Phase,
    fit,
    without_figures,
)

PACE_SECONDS = 1.0
"""Progress within a phase is published at most this often; a new phase, epoch or plan at once, a peer's phase too."""
FIGURES_SECONDS = 4.5
"""The same for figures alone: just under the five seconds between two looks at a serving engine."""
NOISE_BYTES = 64 << 20
"""Smaller changes of the available memory alone are noise."""
SAMPLE_SECONDS, SAMPLES = 10.0, 60
"""Samples of the memory in use."""


class Published(NamedTuple):
    """A report without secrets, and its JSON."""

    report: NodeReport
    text: str


REDACT_LIKELY = Redaction()
"""Redacts what looks like a secret, without a list of secrets."""

Sink = Callable[[Published], None]


class Changes(TypedDict, total=False):
    phase: Phase
    message: str
    hint: str
    cause: str
    action: str
    draining: bool
    last_cause: str
    findings: tuple[FindingReport, ...]
    engine: EngineReport
    memory: MemoryReport | None
    activity: ActivityReport | None
    health: HealthReport | None
    smoke_passed: bool | None
    gpu: GpuReport | None
    kernel_counts: Mapping[str, int]
    launches: int
    ends: Mapping[str, int]
    epoch: str
    plan_digest: str
    config_digest: str
    transport: str
    lan_address: str
    versions: Mapping[str, str]
    peers: tuple[PeerStatus, ...]


class Reporter:
    """The keeper of the report, for the main thread only."""

    def __init__(
        self,
        initial: NodeReport,
        sinks: tuple[Sink, ...],
        redact: Callable[[str], str] = REDACT_LIKELY,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.report = initial
        self._redact = redact
        self.published = make_public(initial, redact)
        """The report as the sinks have it. Any thread may read it."""
        self._sinks = sinks
        self._clock = clock
        self._last: NodeReport | None = None
        """The report that was published last, with its secrets."""
        self._published_at = 0.0
        self._used_percent: tuple[int, ...] = ()
        self._sampled_at = float("-inf")
        self._entered_at = clock()

    @property
    def sample_due(self) -> bool:
        """Whether the next memory report is taken as a sample of the last minutes."""
        return self._clock() - self._sampled_at >= SAMPLE_SECONDS

    def update(self, **changes: Unpack[Changes]) -> None:
        """Change the report, and hand it to the sinks at their pace."""
        before = self.report
        self.report = replace(before, **changes)
        if changes.get("memory"):
            self._sample()
        if self.report.phase is not before.phase:
            self.report = replace(self.report, since=utc_now(), phase_seconds=self._end_phase(before.phase))
            if self.report.phase not in IN_SERVICE:
                self.report = replace(self.report, activity=None, health=None, gpu=None)
        if self._is_due() or _urgent_parts(self.report) != _urgent_parts(before):
            self.publish()

    def update_engine(self, **changes: object) -> None:
        """Change fields of the report's part on the engine."""
        self.update(engine=replace(self.report.engine, **changes))

    def replace_finding(self, finding_id: str, finding: FindingReport | None) -> None:
        """Put this finding in the place of the one with that id; None removes that."""
        others = tuple(other for other in self.report.findings if other.id != finding_id)
        self.update(findings=(*others, finding) if finding else others)

    def _end_phase(self, phase: Phase) -> Mapping[str, float]:
        """Seconds spent in each phase, with those of `phase`, which ends now."""
        entered_at, self._entered_at = self._entered_at, self._clock()
        before = self.report.phase_seconds
        seconds = before.get(phase.value, 0.0) + self._entered_at - entered_at
        return {**before, phase.value: round(seconds, 1)}

    def _sample(self) -> None:
        memory = self.report.memory
        assert memory is not None
        if self.sample_due and memory.total_bytes:
            self._sampled_at = self._clock()
            used = round(100 * (1 - memory.available_bytes / memory.total_bytes))
            self._used_percent = (*self._used_percent, used)[-SAMPLES:]
        self.report = replace(self.report, memory=replace(memory, used_percent=self._used_percent))

    def _is_due(self) -> bool:
        elapsed_seconds = self._clock() - self._published_at
        if elapsed_seconds < PACE_SECONDS or not _differ(self.report, self._last):
            return False
        before = self._last and without_figures(self._last)
        return elapsed_seconds >= FIGURES_SECONDS or without_figures(self.report) != before

    def publish(self) -> None:
        """Hand the report to every sink now."""
        self._last, self._published_at = self.report, self._clock()
        self.published = make_public(self.report, self._redact)
        for sink in self._sinks:
            sink(self.published)


def make_public(report: NodeReport, redact: Callable[[str], str] = REDACT_LIKELY) -> Published:
    """The report for others: redacted, and within LIMIT_BYTES.

    Causes quote the engine, findings quote hooks, and earlier ends may come from an earlier version. The reports of
    other nodes were redacted by them.
    """
    shown = replace(
        report,
        message=redact(report.message),
        hint=redact(report.hint),
        last_cause=redact(report.last_cause),
        last_hint=redact(report.last_hint),
        findings=tuple(
            replace(finding, reason=redact(finding.reason), hint=redact(finding.hint)) for finding in report.findings
        ),
        restarts=tuple(replace(restart, reason=redact(restart.reason)) for restart in report.restarts),
        peers=tuple(replace(peer, said=redact(peer.said)) for peer in report.peers),
    )
    return Published(*fit(shown, LIMIT_BYTES))


def _differ(report: NodeReport, published: NodeReport | None) -> bool:
    """Whether more has changed than noise in the available memory."""
    now, before = report.memory, published and published.memory
    if now and before and abs(now.available_bytes - before.available_bytes) < NOISE_BYTES:
        report = replace(report, memory=replace(now, available_bytes=before.available_bytes))
    return report != published


def _urgent_parts(report: NodeReport) -> object:
    """Parts of a report whose change is published at once."""
    peers = tuple((peer.contact, peer.report and peer.report.phase) for peer in report.peers)
    return report.phase, report.draining, report.epoch, report.plan_digest, report.config_digest, peers


def status_line(report: NodeReport) -> str:
    """The line of STATUS=."""
    return f"{report.phase.value}: {report.message}" if report.message else report.phase.value
