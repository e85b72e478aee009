"""What a start has to pass: preflight, which may fix and check again, and the wait after failures of the plan."""

import time
from functools import partial

from msgspec import Struct, field

from sparkd.agent.daemon import hooks, kernel_log
from sparkd.agent.daemon.context import Context, beside_or_blocked
from sparkd.agent.daemon.head_config import check_head, show_unproven
from sparkd.agent.preflight.check import Finding
from sparkd.agent.preflight.gate import Gate, GateIO
from sparkd.agent.preflight.hooks import list_hooks
from sparkd.agent.preflight.runner import build_checks
from sparkd.base.cluster.membership import check_inputs
from sparkd.base.host import docker
from sparkd.base.lib.errors import BlockedError, NeedsPersonError
from sparkd.base.lib.main_loop import never
from sparkd.base.state.launch_history import BACKOFF_SECONDS
from sparkd.base.status.model import FindingReport, Phase

LOOK_SECONDS = 10.0
"""Limit for a look at dockerd's process, or at the list of hooks: milliseconds, on a disk that does not hang."""
LOOK_HINT = "look at: sudo dmesg"

_NO_REMEDY = ("sparkd starts", "nothing is to be done", "its log", "sudo sparkd logs")
"""Beginnings of hints that suit a first failure, but do not help a person after five."""


class Admission(Struct):
    """Preflight of this process's starts. Used by the main thread."""

    agent: Context
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
        Gate(
            partial(build_checks, check_inputs(agent.context)),
            agent.host,
            agent.settings.preflight,
            io,
            reported=self._reported,
            given_up=self._given_up,
        ).admit()
        return docker_was_up

    def _run_hooks(self) -> tuple[Finding, ...]:
        agent, context = self.agent, self.agent.context
        look = partial(list_hooks, agent.host.files)
        programs = beside_or_blocked(agent.loop, look, LOOK_SECONDS, "looking at the hooks", LOOK_HINT)
        return hooks.run_hooks(programs, agent.loop.wait, hooks.hook_environment(context.role, context.rank))

    def _wait(self, seconds: float, message: str) -> None:
        self.agent.reporter.update(message=message)
        self.agent.loop.wait_until(never, seconds)

    def _show(self, findings: tuple[Finding, ...]) -> None:
        switch = self.agent.context.switch
        switch_findings = switch.findings if switch is not None else ()
        verdicts = ((f.id, f.verdict) for f in findings)
        reports = (
            FindingReport(name, verdict.level.value, verdict.reason, verdict.hint, verdict.required)
            for name, verdict in verdicts
        )
        reporter = self.agent.reporter
        reporter.update(findings=merge_round(reporter.report.findings, (*switch_findings, *reports)))
        show_unproven(self.agent)


def merge_round(before: tuple[FindingReport, ...], of_round: tuple[FindingReport, ...]) -> tuple[FindingReport, ...]:
    """The findings to report after a round of preflight: its own, and the kernel's, whose log is watched beside it and
    may say nothing for an hour. Pure.
    """
    return *(finding for finding in before if finding.id == kernel_log.ID), *of_round


class Backoff(Struct):
    """The wait after failures of the plan. Used by the main thread."""

    agent: Context
    _waited: bool = False
    """This process has waited it out."""

    def wait(self) -> bool:
        """Wait before the next launch of a plan that failed lately. Returns whether it waited.

        Raises NeedsPersonError (exit 17) after too many failures in a row, BlockedError where their count can't be
        read, and what `check_head` raises.
        """
        agent, plan = self.agent, self.agent.plan.backoff_key
        launches = agent.store.require_launches()
        wait_seconds, last_reason = launches.wait_seconds(plan), launches.last_failure(plan)
        if wait_seconds is None:
            failures, proven_seconds = len(BACKOFF_SECONDS), agent.settings.supervise.proven_seconds
            span = f"{proven_seconds / 60:.0f} minutes" if proven_seconds >= 120 else f"{proven_seconds} s"
            end = launches.last.get(plan)
            remedy = end.hint if end is not None else ""
            if not remedy or remedy.startswith(_NO_REMEDY):
                remedy = "fix the cause (sudo sparkd logs --since 1d --level warning)"
            agent.store.record(lambda now: now.reset(plan))
            raise NeedsPersonError(
                f"{failures} launches of this plan in a row ended within {span} of service"
                + (f"; the last: {last_reason}" if last_reason else ""),
                f"{remedy}, then: sudo systemctl start sparkd-{agent.context.role}",
            )
        if self._waited:
            return False
        if wait_seconds:
            agent.phase.enter(Phase.COOLING, f"{wait_seconds} s before the next launch of a plan that failed")
            deadline = time.monotonic() + wait_seconds
            while (left_seconds := deadline - time.monotonic()) > 0:
                agent.reporter.update(message=f"{left_seconds:.0f} s before the next launch of a plan that failed")
                agent.loop.wait_until(never, min(1.0, left_seconds))
                check_head(agent)
        self._waited = True
        return wait_seconds > 0
