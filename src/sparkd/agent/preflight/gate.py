"""Decides whether the launch may begin: runs checks and the operator's hooks, applies allowed fixes, checks again."""

import time
from collections.abc import Callable, Sequence

from msgspec import Struct, field

from sparkd.agent.preflight import runner
from sparkd.agent.preflight.check import AnyCheck, Finding, Level
from sparkd.agent.preflight.fixes import Applied, Fix, FixState, Identity, identity
from sparkd.base.config.settings import Preflight
from sparkd.base.host import Host
from sparkd.base.lib.errors import Action, BlockedError, NeedsPersonError, SparkdError
from sparkd.base.lib.log import Events
from sparkd.base.lib.main_loop import MainLoop
from sparkd.base.plan.inputs import MemorySample

POLL_SECONDS, SLOW_POLL_SECONDS = 1.0, 5.0
"""Pause between two checks in the first ten seconds, and after them: what has not come until then takes longer."""
LOOK_SECONDS = 120.0
"""Limit for all checks together, which take 0.3 s on a healthy node. After it a driver or a file server hangs."""
THREADS_HINT = "see who has so many processes: ps -eLo user= | sort | uniq -c"
HANG_HINT = "end the process that is named, or see what hangs: sudo dmesg; where neither helps: sudo systemctl reboot"
MAX_ROUNDS = 4
"""Most rounds of fixes. A second is common, since ended strays leave segments. After more, something makes new ones."""

BuildChecks = Callable[[MemorySample | None, frozenset[Identity]], Sequence[AnyCheck]]
"""The checks of this node, given the least memory available since some last came back, and the fixes applied so far."""


class GateIO(Struct, frozen=True):
    """How the gate applies fixes, runs hooks, waits and reports."""

    apply: Callable[[Fix], Applied]
    """Applies a fix; may raise OSError or SparkdError."""
    hooks: Callable[[], tuple[Finding, ...]]
    wait: Callable[[float, str], None]
    """Waits for these seconds; the text gives the reason."""
    loop: MainLoop
    """Runs checks that may hang, with a deadline."""
    events: Events
    show: Callable[[tuple[Finding, ...]], None]
    """Publishes findings."""


class GateResult(Struct, frozen=True):
    """The outcome. `before`: the findings before the first fix; empty where nothing was changed."""

    before: tuple[Finding, ...]
    findings: tuple[Finding, ...]
    fixes: tuple[FixState, ...]

    def refusal(self) -> SparkdError | None:
        """The error with all that blocks, in one line; None where the launch may begin."""
        blocked = runner.blocking(self.findings)
        if not blocked:
            return None
        first, *rest = blocked
        others = f"; and {len(rest)} more: {', '.join(finding.id for finding in rest)}" if rest else ""
        reason = f"{first.id}: {first.verdict.reason}{others}"
        action = Action(first.verdict.required)
        if first.verdict.needs_person:
            is_proven = all(finding.verdict.level is Level.BLOCK and not finding.verdict.unsure for finding in blocked)
            return NeedsPersonError(reason, first.verdict.hint, action=action, proven=is_proven)
        return BlockedError(reason, first.verdict.hint, tuple(finding.id for finding in blocked), action)


def decision(finding: Finding) -> tuple[object, ...]:
    """The parts of a verdict that make it another decision when they change; sizes in its reason do not."""
    verdict = finding.verdict
    return verdict.level, verdict.hint, verdict.awaits, tuple(identity(fix) for fix in verdict.fixes)


class Gate(Struct):
    """Examines one node for one launch, and keeps what was tried and waited for."""

    build_checks: BuildChecks
    host: Host
    policy: Preflight
    io: GateIO
    reported: dict[str, object] = field(default_factory=dict)
    """The decision that was last logged of each check, and the outcome of each fix."""
    given_up: set[str] = field(default_factory=set)
    """What warnings awaited until the time was over: it is not awaited again."""
    tried: set[Identity] = field(default_factory=set)
    """What fixes were applied to."""
    _memory: MemorySample | None = None
    """The least that was available since memory last came back."""
    _hook_findings: tuple[Finding, ...] | None = None
    """Findings of the hooks; None before these were run."""
    _first_findings: tuple[Finding, ...] = ()
    """The findings before the first fix."""
    _waited_seconds: float = 0.0
    _wait_began: str = ""
    """Time of day."""
    _rounds: int = 0
    """Rounds of fixes."""
    _fixes: list[FixState] = field(default_factory=list)

    def admit(self) -> GateResult:
        """Decide, after all waits and fixes. Raises BlockedError (10) or NeedsPersonError (17) for a refusal."""
        result = self.fix_and_recheck()
        if (refusal := result.refusal()) is not None:
            raise refusal
        self.io.events.info("preflight.gate.passed", fixes=len(result.fixes))
        return result

    def fix_and_recheck(self) -> GateResult:
        """Check until nothing more can be waited for or fixed. Waits and rounds are both bounded.

        Raises ConfigError for an id that no check has.
        """
        runner.check_ids(self.policy)
        while True:
            findings = self._examine_with_deadline()
            self._report(findings)
            if self._wait_if_useful(findings):
                continue
            if self._hook_findings is None:
                self._hook_findings = self.io.hooks()
                self._report(self._hook_findings)
            findings = (*findings, *self._hook_findings)
            self.io.show(findings)
            if not (fixes := self._find_untried_fixes(findings)):
                return GateResult(self._first_findings, findings, tuple(self._fixes))
            self._first_findings = self._first_findings or findings
            self._rounds += 1
            self._fixes += [self._apply(fix) for fix in fixes]
            self._memory = None  # the fixes change it: the time to settle begins again

    def _examine_with_deadline(self) -> tuple[Finding, ...]:
        """Run all checks in a thread. Raises BlockedError where there is no thread, or a check hangs."""
        try:
            return self.io.loop.beside(self._examine, LOOK_SECONDS, "looking at this node")
        except BlockingIOError as error:
            raise BlockedError(f"no look at this node: {error}", THREADS_HINT, runner.IDS) from None
        except TimeoutError as error:
            raise BlockedError(str(error), HANG_HINT, runner.IDS) from None

    def _examine(self) -> tuple[Finding, ...]:
        self._memory = self._resample_memory()
        checks = self.build_checks(self._memory, frozenset(self.tried))
        checks = runner.without_skipped(checks, self.policy.skip)
        return runner.by_policy(runner.examine(checks, self.host), self.policy)

    def _resample_memory(self) -> MemorySample | None:
        """The kept sample, merged with a new one. None where it is unreadable, which a check reports."""
        try:
            sample = MemorySample(self.host.uptime_seconds(), self.host.meminfo().available_bytes)
        except (OSError, ValueError):
            return None
        return self._memory.merge(sample) if self._memory else sample

    def _wait_if_useful(self, findings: tuple[Finding, ...]) -> bool:
        """Wait for a moment, if waiting may help and time is left for it. Returns whether it waited.

        Once the time is over, what warnings await is given up.
        """
        awaited = self._describe_awaited(findings)
        left_seconds = self.policy.wait_seconds - self._waited_seconds
        if not awaited:
            return False
        if left_seconds <= 0:
            self.given_up.update(finding.verdict.awaits for finding in findings if finding.verdict.level is Level.WARN)
            return False
        self.io.show(findings)
        if not self._waited_seconds:
            self._wait_began = time.strftime("%H:%M:%S UTC", time.gmtime())
            self.io.events.info("preflight.wait.started", awaits=awaited, at_most_seconds=left_seconds)
        pause_seconds = min(left_seconds, POLL_SECONDS if self._waited_seconds < 10 else SLOW_POLL_SECONDS)
        reason = f"waiting for {awaited} since {self._wait_began}, {self.policy.wait_seconds} s at most"
        self.io.wait(pause_seconds, reason)
        self._waited_seconds += pause_seconds
        return True

    def _describe_awaited(self, findings: tuple[Finding, ...]) -> str:
        """What may come by itself and clear all that no fix clears, in words; empty where waiting can't do that.

        Where nothing is left that blocks, what warnings await counts too, until the time for it is over.
        """
        stuck = runner.uncleared(findings, self.policy.allow_fixes)
        awaited = [finding.verdict.awaits for finding in stuck]
        if not stuck:
            warned = (finding.verdict.awaits for finding in findings if finding.verdict.level is Level.WARN)
            awaited = [awaits for awaits in warned if awaits and awaits not in self.given_up]
        return " and ".join(dict.fromkeys(awaited)) if all(awaited) else ""

    def _find_untried_fixes(self, findings: tuple[Finding, ...]) -> tuple[Fix, ...]:
        if self._rounds >= MAX_ROUNDS:
            return ()
        fixes = runner.fixes_to_apply(findings, self.policy.allow_fixes)
        return tuple(fix for fix in fixes if identity(fix) not in self.tried)

    def _apply(self, fix: Fix) -> FixState:
        self.tried.add(identity(fix))
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
        """Log each decision when it changes; changed sizes alone are not logged."""
        events = self.io.events
        logs = {Level.WARN: events.warning, Level.BLOCK: events.error, Level.UNKNOWN: events.error}
        for finding in findings:
            verdict = finding.verdict
            if self.reported.get(finding.id) == decision(finding):
                continue
            self.reported[finding.id] = decision(finding)
            logs.get(verdict.level, events.info)(
                "preflight.check.judged",
                check=finding.id,
                verdict=verdict.level.value,
                reason=verdict.reason,
                hint=verdict.hint,
                action=verdict.required,
                needs_person=verdict.needs_person,
                seconds=finding.seconds,
            )
