"""May the launch begin? Run the checks and the operator's hooks, apply the fixes that are allowed, check again."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from msgspec import Struct, field
from msgspec.structs import replace

from sparkd.agent.preflight.check import AnyCheck, Finding, Level
from sparkd.agent.preflight.checks.memory import sample_memory
from sparkd.agent.preflight.checks.stray_workers import StrayWorkers
from sparkd.agent.preflight.fixes import Applied, Fix, FixState, Identity, identity
from sparkd.agent.preflight.runner import (
    IDS,
    blocking,
    check_ids,
    chosen,
    downgraded,
    examine,
    fixes_to_apply,
    uncleared,
)
from sparkd.base.config.settings import Preflight
from sparkd.base.host import Host
from sparkd.base.lib.errors import Action, BlockedError, NeedsPersonError, SparkdError
from sparkd.base.lib.log import Events
from sparkd.base.lib.main_loop import MainLoop
from sparkd.base.plan.inputs import MemorySample

POLL_SECONDS = 1.0
SLOW_POLL_SECONDS = 5.0
"""Pause after the first ten seconds: what has not come by then takes longer."""
LOOK_SECONDS = 120.0
"""Limit for all checks together: 0.3 s on a healthy node. Beyond it a driver or a file server hangs."""
THREADS_HINT = "see who has so many processes: ps -eLo user= | sort | uniq -c"
HANG_HINT = "end the process that is named, or see what hangs: sudo dmesg; where neither helps, reboot this node"
MAX_ROUNDS = 4
"""Rounds of fixes. Ending strays sets segments free, so a second is common. More: something makes new ones."""

BuildChecks = Callable[[MemorySample | None], Sequence[AnyCheck]]
"""The checks of this node, given the first sample of the memory in its present state."""


class GateIO(Struct, frozen=True):
    """How the gate applies fixes, runs hooks, waits and reports."""

    apply: Callable[[Fix], Applied]
    """Applies a fix; may raise OSError or SparkdError."""
    hooks: Callable[[], tuple[Finding, ...]]
    wait: Callable[[float, str], None]
    """Waits so many seconds; the text gives the reason."""
    loop: MainLoop
    """Runs checks that may hang, with a deadline."""
    events: Events
    show: Callable[[tuple[Finding, ...]], None]


class Admission(Struct, frozen=True):
    """The outcome. `before` is empty where nothing was changed."""

    before: tuple[Finding, ...]
    findings: tuple[Finding, ...]
    fixes: tuple[FixState, ...]

    def refusal(self) -> SparkdError | None:
        """All that blocks, in one line; None where the launch may begin."""
        blocked = blocking(self.findings)
        if not blocked:
            return None
        first = blocked[0]
        others = (
            f"; and {len(blocked) - 1} more: {', '.join(finding.id for finding in blocked[1:])}" if blocked[1:] else ""
        )
        reason = f"{first.id}: {first.verdict.reason}{others}"
        action = Action(first.verdict.required)
        if first.verdict.needs_person:
            proven = all(finding.verdict.level is Level.BLOCK and not finding.verdict.unsure for finding in blocked)
            return NeedsPersonError(reason, first.verdict.hint, action=action, proven=proven)
        return BlockedError(reason, first.verdict.hint, tuple(finding.id for finding in blocked), action)


def decision(finding: Finding) -> tuple[object, ...]:
    """What a verdict decides. Changed sizes alone are no new decision."""
    verdict = finding.verdict
    return verdict.level, verdict.hint, verdict.awaits, tuple(identity(fix) for fix in verdict.fixes)


class Gate(Struct):
    build_checks: BuildChecks
    host: Host
    policy: Preflight
    io: GateIO
    memory: MemorySample | None = None
    hook_findings: tuple[Finding, ...] | None = None
    before: tuple[Finding, ...] = ()
    waited_seconds: float = 0.0
    since: str = ""
    rounds: int = 0
    fixes: list[FixState] = field(default_factory=list)
    reported: dict[str, object] = field(default_factory=dict)
    """What was last logged of each check and fix."""
    given_up: set[str] = field(default_factory=set)
    """What warnings awaited for the whole time, without effect."""

    def admit(self) -> Admission:
        """Raises BlockedError (10) or NeedsPersonError (17) where the launch may not begin."""
        admission = self.fix_and_recheck()
        if (refusal := admission.refusal()) is not None:
            raise refusal
        self.io.events.info("preflight.gate.passed", fixes=len(admission.fixes))
        return admission

    def fix_and_recheck(self) -> Admission:
        """Check until nothing more can be waited for or fixed. It ends: waits and rounds are both bounded.

        Raises ConfigError for an id that no check has.
        """
        check_ids(self.policy)
        while True:
            findings = self._examine_with_deadline()
            self._report(findings)
            if self._wait(findings):
                continue
            if self.hook_findings is None:
                self.hook_findings = self.io.hooks()
                self._report(self.hook_findings)
            findings = (*findings, *self.hook_findings)
            self.io.show(findings)
            if not (fixes := self._untried(findings)):
                return Admission(self.before, findings, tuple(self.fixes))
            self.before = self.before or findings
            self.rounds += 1
            self.fixes += [self._apply(fix) for fix in fixes]
            self.memory = None  # the fixes change it: the time to settle begins again

    def _examine_with_deadline(self) -> tuple[Finding, ...]:
        try:
            return self.io.loop.beside(self._examine, LOOK_SECONDS, "looking at this node")
        except BlockingIOError as error:
            raise BlockedError(f"no look at this node: {error}", THREADS_HINT, IDS) from None
        except TimeoutError as error:
            raise BlockedError(str(error), HANG_HINT, IDS) from None

    def _examine(self) -> tuple[Finding, ...]:
        self.memory = self._resample_memory()
        checks = chosen(self.build_checks(self.memory), self.policy.skip)
        # A stray that survived its fix is judged differently from one that was just found.
        checks = tuple(
            replace(check, tried=self._tried()) if isinstance(check, StrayWorkers) else check for check in checks
        )
        return downgraded(examine(checks, self.host), self.policy.downgrade)

    def _resample_memory(self) -> MemorySample | None:
        """The first sample of the memory in its present state. None where it can't be read: the check reports it."""
        try:
            now = sample_memory(self.host)
        except (OSError, ValueError):
            return None
        return self.memory if self.memory is not None and self.memory.still_has(now.available_bytes) else now

    def _tried(self) -> frozenset[Identity]:
        return frozenset(identity(state.fix) for state in self.fixes)

    def _wait(self, findings: tuple[Finding, ...]) -> bool:
        """Whether there was something to wait for, and time left for it."""
        awaited = self._awaited(findings)
        left = self.policy.wait_seconds - self.waited_seconds
        if not awaited:
            return False
        if left <= 0:
            self.given_up.update(finding.verdict.awaits for finding in findings if finding.verdict.level is Level.WARN)
            return False
        self.io.show(findings)
        if not self.waited_seconds:
            self.since = time.strftime("%H:%M:%S UTC", time.gmtime())
            self.io.events.info("preflight.wait.started", awaits=awaited, at_most_seconds=left)
        pause = min(left, POLL_SECONDS if self.waited_seconds < 10 else SLOW_POLL_SECONDS)
        self.io.wait(pause, f"waiting for {awaited} since {self.since}, {self.policy.wait_seconds} s at most")
        self.waited_seconds += pause
        return True

    def _awaited(self, findings: tuple[Finding, ...]) -> str:
        """What may come by itself and clear all that no fix clears; empty where waiting clears nothing.

        Where nothing blocks, what a warning awaits is waited for too, once.
        """
        stuck = uncleared(findings, self.policy.allow_fixes)
        awaited = [finding.verdict.awaits for finding in stuck]
        if not stuck:
            warned = (finding.verdict.awaits for finding in findings if finding.verdict.level is Level.WARN)
            awaited = [awaits for awaits in warned if awaits and awaits not in self.given_up]
        return " and ".join(dict.fromkeys(awaited)) if all(awaited) else ""

    def _untried(self, findings: tuple[Finding, ...]) -> tuple[Fix, ...]:
        if self.rounds >= MAX_ROUNDS:
            return ()
        tried = self._tried()
        return tuple(fix for fix in fixes_to_apply(findings, self.policy.allow_fixes) if identity(fix) not in tried)

    def _apply(self, fix: Fix) -> FixState:
        try:
            applied = self.io.apply(fix)
        except (OSError, SparkdError) as error:
            applied = Applied("failed", str(error))
        key, outcome = f"{fix.kind} {identity(fix)}", (applied.state, applied.note)
        if self.reported.get(key) != outcome:
            self.reported[key] = outcome
            log = self.io.events.error if applied.state == "failed" else self.io.events.info
            log(f"preflight.fix.{applied.state}", kind=fix.kind, target=fix.target, note=applied.note)
        return FixState(fix, applied.state, applied.note)

    def _report(self, findings: tuple[Finding, ...]) -> None:
        """One event for each decision, when it changes; changed sizes alone are no event."""
        events = self.io.events
        for finding in findings:
            verdict = finding.verdict
            if self.reported.get(finding.id) == decision(finding):
                continue
            self.reported[finding.id] = decision(finding)
            warn = events.warning if verdict.level is Level.WARN else events.info
            (events.error if verdict.level.blocks else warn)(
                "preflight.check.judged",
                check=finding.id,
                verdict=verdict.level.value,
                reason=verdict.reason,
                hint=verdict.hint,
                action=verdict.required,
                needs_person=verdict.needs_person,
                seconds=finding.seconds,
            )
