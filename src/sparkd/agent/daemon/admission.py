"""Preflight as a start passes it: with the agent's actions, hooks and waits, and its findings in the report."""

from functools import partial

from msgspec import Struct, field

from sparkd.agent.daemon import hooks, kernel_log
from sparkd.agent.daemon.context import Context, beside_or_blocked
from sparkd.agent.daemon.head_config import show_unproven
from sparkd.agent.preflight.check import Finding
from sparkd.agent.preflight.fixes import Identity
from sparkd.agent.preflight.gate import Gate, GateIO
from sparkd.agent.preflight.hooks import list_hooks
from sparkd.agent.preflight.runner import build_checks
from sparkd.base.cluster.membership import check_inputs
from sparkd.base.host import docker
from sparkd.base.lib.errors import BlockedError
from sparkd.base.lib.main_loop import never
from sparkd.base.status.model import FindingReport, Phase

LOOK_SECONDS = 10.0
"""Limit for a look at dockerd's process, or at the list of hooks: milliseconds, on a disk that does not hang."""
LOOK_HINT = "look at: sudo dmesg"


class Admission(Struct):
    """Preflight of this process's starts. Used by the main thread."""

    agent: Context
    tried: set[Identity] = field(default_factory=set)
    """What the last preflight has applied fixes to."""
    _reported: dict[str, object] = field(default_factory=dict)
    """Verdicts and applied fixes, as last logged."""
    _given_up: set[str] = field(default_factory=set)
    """What preflight has awaited without effect, and does not await again."""

    def check(self) -> bool:
        """Pass preflight. Returns whether docker ran before it. Raises BlockedError (10) or NeedsPersonError (17)."""
        agent = self.agent
        look = partial(docker.running, agent.host)
        docker_was_up = beside_or_blocked(agent.loop, look, LOOK_SECONDS, "looking at dockerd", LOOK_HINT)
        # BLOCKED stays until nothing blocks: another try is no news.
        if agent.reporter.report.phase is not Phase.BLOCKED:
            agent.phase.enter(Phase.PREFLIGHT)
        try:
            agent.actions.require_run_room()
        except OSError as error:
            reason = f"{error.filename or '/run'} can't be written: {error.strerror or error}"
            raise BlockedError(reason, "make room: df -h /run; find /run -size +1M") from None
        io = GateIO(agent.actions.apply, self._run_hooks, self._wait, agent.loop, agent.events, self._show)
        build = partial(build_checks, check_inputs(agent.context))
        self.tried = set()
        Gate(build, agent.host, agent.settings.preflight, io, self._reported, self._given_up, self.tried).admit()
        return docker_was_up

    def _run_hooks(self) -> tuple[Finding, ...]:
        agent, context = self.agent, self.agent.context
        look = partial(list_hooks, agent.host.files)
        programs = beside_or_blocked(agent.loop, look, LOOK_SECONDS, "looking at the hooks", LOOK_HINT)
        return hooks.run_hooks(programs, agent.loop.wait, hooks.hook_environment(context.role, context.rank))

    def _wait(self, seconds: float, message: str) -> None:
        self.agent.reporter.update(message=message, hint="")
        self.agent.loop.wait_until(never, seconds)

    def _show(self, findings: tuple[Finding, ...]) -> None:
        switch = self.agent.context.switch
        switch_findings = switch.findings if switch is not None else ()
        of_round, reporter = (*switch_findings, *map(_report_finding, findings)), self.agent.reporter
        reporter.update(findings=merge_round(reporter.report.findings, of_round))
        show_unproven(self.agent)


def _report_finding(finding: Finding) -> FindingReport:
    verdict = finding.verdict
    return FindingReport(finding.id, verdict.level.value, verdict.reason, verdict.hint, verdict.required)


def merge_round(before: tuple[FindingReport, ...], of_round: tuple[FindingReport, ...]) -> tuple[FindingReport, ...]:
    """The findings to report after a round of preflight: its own, and the kernel's, whose log is watched beside it and
    may say nothing for an hour. Pure.
    """
    return *(finding for finding in before if finding.id == kernel_log.ID), *of_round
