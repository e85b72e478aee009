"""The phase of an agent in its report and its journal, and the memory that each report shows."""

from __future__ import annotations

from sparkd.agent.daemon.own_rank import OwnRank
from sparkd.base.host import Host
from sparkd.base.lib.log import Events
from sparkd.base.status.model import MemoryReport, Phase
from sparkd.base.status.phases import may_follow
from sparkd.base.status.publisher import Reporter


class PhaseReport:
    """For the main thread."""

    def __init__(self, host: Host, reporter: Reporter, events: Events, rank: OwnRank, floor_bytes: int) -> None:
        self.failed_in: Phase | None = None
        """The phase in which the run failed or was blocked, until that is tried again."""
        self._host = host
        self._reporter = reporter
        self._events = events
        self._rank = rank
        self._floor_bytes = floor_bytes

    def enter(self, phase: Phase, message: str = "", *, draining: bool = False) -> None:
        """Enter a phase, or report a new message in the current one. `draining`: requests still run."""
        before = self._reporter.report.phase
        ended = phase in (Phase.BLOCKED, Phase.FAILED)
        if ended and self.failed_in is None:
            self.failed_in = before
        self._reporter.update(phase=phase, message=message, draining=draining, memory=self.memory())
        if not may_follow(before, phase):
            hint = "the engine is not touched; please report this"
            self._events.error("agent.phase.unexpected", before=before.value, phase=phase.value, hint=hint)
        if phase is not before:
            # A failure is logged as an event of its own, with its reason.
            self._events.info("agent.phase.changed", phase=phase.value, message="" if ended else message)

    def forget_failure(self) -> None:
        """What blocked may be over: it is tried again."""
        self.failed_in = None

    def memory(self) -> MemoryReport | None:
        try:
            info = self._host.meminfo()
        except (OSError, ValueError):
            return None
        return MemoryReport(
            info.total_bytes,
            info.available_bytes,
            floor_bytes=self._floor_bytes or None,
            guard=self._rank.guard_state,
            released_bytes=self._rank.released_bytes,
        )

    def sample_memory(self) -> None:
        """For the last minutes in the report, in whatever phase."""
        if self._reporter.sample_due:
            self._reporter.update(memory=self.memory())
