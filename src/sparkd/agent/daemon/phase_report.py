"""The phase that a run is in, as the report has it, with what the node's memory is then."""

from msgspec import Struct

from sparkd.agent.daemon.own_rank import OwnRank
from sparkd.base.host import Host
from sparkd.base.lib.log import Events
from sparkd.base.status.model import MemoryReport, Phase
from sparkd.base.status.phases import may_follow
from sparkd.base.status.publisher import Reporter


class PhaseReport(Struct):
    """Enters the phases of the report. Used by the main thread."""

    host: Host
    reporter: Reporter
    events: Events
    rank: OwnRank
    floor_bytes: int
    failed_in: Phase | None = None
    """The phase in which the run failed or was blocked, until that is tried again."""

    def enter(
        self, phase: Phase, message: str = "", *, draining: bool = False, action: str = "", hint: str = ""
    ) -> None:
        """Enter a phase, or report a new message in the current one.

        `draining`: requests still run. `action`: what somebody has to do, and `hint` in words.
        """
        previous = self.reporter.report.phase
        has_ended = phase in (Phase.BLOCKED, Phase.FAILED)
        if has_ended and previous is not phase and self.failed_in is None:
            self.failed_in = previous
        memory = self.memory()
        self.reporter.update(phase=phase, message=message, hint=hint, draining=draining, action=action, memory=memory)
        if not may_follow(previous, phase):
            hint = "the engine is not touched; please report this"
            self.events.error("agent.phase.unexpected", before=previous.value, phase=phase.value, hint=hint)
        if phase is not previous:
            # A failure is logged as an event of its own, with its reason.
            self.events.info("agent.phase.changed", phase=phase.value, message="" if has_ended else message)

    def forget_failure(self) -> None:
        """Forget the phase that failed, before it is tried again."""
        self.failed_in = None

    def memory(self) -> MemoryReport | None:
        """The node's memory now; None where it can't be read."""
        try:
            info = self.host.meminfo()
        except (OSError, ValueError):
            return None
        running = self.rank.running
        return MemoryReport(
            info.total_bytes,
            info.available_bytes,
            floor_bytes=self.floor_bytes or None,
            guard=running.guard_state if running else "",
            released_bytes=running.released_bytes if running else 0,
        )

    def sample_memory(self) -> None:
        """Add a sample to the report's last minutes, in whatever phase."""
        if self.reporter.sample_due:
            self.reporter.update(memory=self.memory())
