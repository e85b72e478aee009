"""Admission: may the launch begin? Look, ask the hooks, mend what may be mended, look again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol, TypeVar, assert_never

from msgspec import Struct, field
from msgspec.structs import replace

from sparkd.errors import BlockedError, NeedsPersonError, SparkdError
from sparkd.preflight.catalogue import IDS
from sparkd.preflight.check import AnyCheck, Finding, Level
from sparkd.preflight.examine import blocking, chosen, downgraded, examine, fixes_to_apply, uncleared
from sparkd.preflight.fixes import DropPageCache, EndProcess, Fix, RemoveContainer, UnlinkSegment
from sparkd.preflight.memory import UNCHANGED_BYTES, MemorySample, sample
from sparkd.preflight.render import FixState
from sparkd.preflight.strays import StrayWorkers

if TYPE_CHECKING:
    from sparkd.hands.applied import Applied
    from sparkd.host import Host
    from sparkd.lib.log import Events

POLL_SECONDS = 1.0
LOOK_SECONDS = 120.0
"""For all checks together: 0.3 s on a healthy node. Longer, and a driver or a file server hangs whoever asks."""
MAX_ROUNDS = 4
"""Rounds of fixes. Ending strays sets segments free, so a second is common. More: something makes new ones."""

T = TypeVar("T")
BuildChecks = Callable[[MemorySample | None], Sequence[AnyCheck]]
"""The checks of this node, given the first look at the memory as it is now."""


class Beside(Protocol):
    """`Pulse.beside`."""

    def __call__(self, work: Callable[[], T], seconds: float, what: str) -> T: ...


class Fixer(Protocol):
    """`Hands`, as far as admission needs them."""

    def apply(self, fix: Fix) -> Applied: ...


class Policy(Struct, frozen=True):
    """What the settings say of preflight."""

    skip: tuple[str, ...]
    downgrade: tuple[str, ...]
    allow_fixes: tuple[str, ...]
    wait_seconds: float


class Ways(Struct, frozen=True):
    """How admission asks, waits and tells."""

    hooks: Callable[[], tuple[Finding, ...]]
    """Runs the operator's hooks."""
    wait: Callable[[float, str], None]
    """Wait so many seconds, saying for what."""
    beside: Beside
    """Runs a look that may hang, with a deadline."""
    events: Events
    show: Callable[[tuple[Finding, ...]], None]
    """Takes the findings after each look."""


class Admission(Struct, frozen=True):
    """How it went. `before` is empty where nothing was changed."""

    before: tuple[Finding, ...]
    findings: tuple[Finding, ...]
    fixes: tuple[FixState, ...]

    def refusal(self) -> SparkdError | None:
        """The one line that says it all; None where the launch may begin."""
        blocked = blocking(self.findings)
        if not blocked:
            return None
        first = blocked[0]
        others = f"; and {len(blocked) - 1} more: {', '.join(one.id for one in blocked[1:])}" if blocked[1:] else ""
        kind = NeedsPersonError if first.verdict.needs_person else BlockedError
        return kind(f"{first.id}: {first.verdict.reason}{others}", first.verdict.hint)


class _Seen(Struct):
    """What one admission has seen and done so far."""

    memory: MemorySample | None = None
    hooks: tuple[Finding, ...] | None = None
    before: tuple[Finding, ...] = ()
    waited_seconds: float = 0.0
    rounds: int = 0
    fixes: list[FixState] = field(default_factory=list)
    told: dict[str, object] = field(default_factory=dict)


def admit(build_checks: BuildChecks, host: Host, hands: Fixer, policy: Policy, ways: Ways) -> Admission:
    """Raises BlockedError (10) or NeedsPersonError (17) where the launch may not begin."""
    admission = mend(build_checks, host, hands, policy, ways)
    refusal = admission.refusal()
    if refusal is not None:
        raise refusal
    ways.events.info("preflight.node.admitted", fixes=len(admission.fixes))
    return admission


def mend(build_checks: BuildChecks, host: Host, hands: Fixer, policy: Policy, ways: Ways) -> Admission:
    """Look until nothing more can be waited for or mended. It ends: waits and rounds are both bounded."""
    seen = _Seen()
    while True:
        findings = _look_beside(lambda: _look(build_checks, host, policy, seen), ways)
        _tell(findings, seen, ways.events)
        if _wait(findings, policy, seen, ways):
            continue
        if seen.hooks is None:
            seen.hooks = ways.hooks()
            _tell(seen.hooks, seen, ways.events)
        findings = (*findings, *seen.hooks)
        ways.show(findings)
        fixes = _untried(findings, policy, seen)
        if not fixes:
            return Admission(seen.before, findings, tuple(seen.fixes))
        seen.before = seen.before or findings
        seen.rounds += 1
        seen.fixes += [_apply(fix, hands, ways.events) for fix in fixes]
        seen.memory = None  # what was changed changes it: the time to settle begins anew


def _look_beside(look: Callable[[], tuple[Finding, ...]], ways: Ways) -> tuple[Finding, ...]:
    try:
        return ways.beside(look, LOOK_SECONDS, "looking at this node")
    except TimeoutError as error:
        hint = (
            "a driver or a file server hangs whoever asks it: look at dmesg; where that does not help, reboot this node"
        )
        raise BlockedError(str(error), hint) from None


def _look(build_checks: BuildChecks, host: Host, policy: Policy, seen: _Seen) -> tuple[Finding, ...]:
    seen.memory = _sampled(host, seen.memory)
    checks = chosen(build_checks(seen.memory), policy.skip, IDS)
    return downgraded(examine([_knowing(one, seen) for one in checks], host), policy.downgrade, IDS)


def _wait(findings: tuple[Finding, ...], policy: Policy, seen: _Seen, ways: Ways) -> bool:
    """Whether there was something to wait for, and time left for it."""
    awaited = _awaited(findings, policy)
    left = policy.wait_seconds - seen.waited_seconds
    if not awaited or left <= 0:
        return False
    ways.show(findings)
    if not seen.waited_seconds:
        ways.events.info("preflight.wait.began", awaits=awaited, at_most_seconds=left)
    seconds = min(POLL_SECONDS, left)
    ways.wait(seconds, f"waiting for {awaited}")
    seen.waited_seconds += seconds
    return True


def _sampled(host: Host, before: MemorySample | None) -> MemorySample | None:
    """The first look at the memory as it is now. None where it can't be read: the check says so itself."""
    try:
        now = sample(host)
    except (OSError, ValueError):
        return None
    unchanged = before is not None and abs(now.available_bytes - before.available_bytes) < UNCHANGED_BYTES
    return before if unchanged else now


def _knowing(check: AnyCheck, seen: _Seen) -> AnyCheck:
    """A stray that was to be ended and still lives is another matter than one that was just found."""
    if not isinstance(check, StrayWorkers):
        return check
    tried = [one.fix for one in seen.fixes]
    return replace(
        check,
        tried=frozenset((fix.pid, fix.start_time) for fix in tried if isinstance(fix, EndProcess)),
        tried_containers=frozenset(fix.container_id for fix in tried if isinstance(fix, RemoveContainer)),
    )


def _awaited(findings: tuple[Finding, ...], policy: Policy) -> str:
    """What may come up by itself and would clear all that no fix clears; empty where waiting is in vain."""
    stuck = uncleared(findings, policy.allow_fixes)
    if not stuck or not all(one.verdict.awaits for one in stuck):
        return ""
    return " and ".join(dict.fromkeys(one.verdict.awaits for one in stuck))


def _untried(findings: tuple[Finding, ...], policy: Policy, seen: _Seen) -> tuple[Fix, ...]:
    if seen.rounds >= MAX_ROUNDS:
        return ()
    tried = {identity(one.fix) for one in seen.fixes}
    return tuple(fix for fix in fixes_to_apply(findings, policy.allow_fixes) if identity(fix) not in tried)


def identity(fix: Fix) -> tuple[object, ...]:
    """What a fix changes, whatever was known of its size when it was judged."""
    match fix:
        case EndProcess():
            return fix.kind, fix.pid, fix.start_time
        case RemoveContainer():
            return fix.kind, fix.container_id
        case UnlinkSegment():
            return fix.kind, fix.path, fix.device, fix.inode
        case DropPageCache():
            return (fix.kind,)
        case _:
            assert_never(fix)


def _apply(fix: Fix, hands: Fixer, events: Events) -> FixState:
    try:
        applied = hands.apply(fix)
        done = FixState(fix, applied.state, applied.note)
    except (OSError, SparkdError) as error:
        done = FixState(fix, "failed", str(error))
    tell = events.error if done.state == "failed" else events.info
    tell(f"preflight.fix.{done.state}", kind=fix.kind, target=fix.target, note=done.note)
    return done


def _tell(findings: tuple[Finding, ...], seen: _Seen, events: Events) -> None:
    """One event for each decision, when it changes: not for each byte that moves while it stands."""
    for finding in findings:
        verdict = finding.verdict
        decision = (verdict.level, verdict.hint, verdict.awaits, tuple(identity(fix) for fix in verdict.fixes))
        if seen.told.get(finding.id) == decision:
            continue
        seen.told[finding.id] = decision
        tell = events.warning if verdict.level is Level.WARN else events.error if verdict.level.blocks else events.info
        tell(
            "preflight.check.judged",
            check=finding.id,
            verdict=verdict.level.value,
            reason=verdict.reason,
            hint=verdict.hint,
            needs_person=verdict.needs_person,
            seconds=finding.seconds,
        )
