"""Judges by probes whether a serving engine is kept or given up, and when a canary is sent. Pure.

vLLM's exit code and /health prove little: an engine that lost a rank exits 0, and /health stays 200. The tests are that
its counters move while requests run, and that a canary completion gets a token when nothing runs.

An engine that hangs in its first step after idleness reports no request. The kernel's sockets still show requests that
have no answer, or headers alone. Such a request is a reason for a canary, and no more: its client may be slow.

A probe that could not read the counters shows neither progress nor idleness: what the last read showed stays in force.
"""

from msgspec import Struct
from msgspec.structs import replace

from sparkd.agent.engine.hang import IDLE_SECONDS
from sparkd.agent.engine.readiness import MAX_EXTENSION
from sparkd.base.config.settings import Supervise
from sparkd.base.host.sockets import PendingRequest
from sparkd.base.lib.errors import EngineDeadError, StalledError
from sparkd.base.vllm.api import Completion
from sparkd.base.vllm.counters import Counters

DEAD_STATUS = 503
"""vLLM's /health once it knows that its engine is dead."""
CANARY_PAUSE_SECONDS = 30.0
"""Pause after a canary that failed."""
UNREAD_SECONDS = 30.0
"""Time that /metrics may fail while requests run, before a canary decides whether the engine works."""
DOUBT_SECONDS = 2.0
"""Time that a request may wait for the first byte of its answer, before it is a reason for a canary."""
BEGUN_DOUBT_SECONDS = 6.0
"""The same for one whose answer has begun and is not complete: vLLM closes a connection 5 s after its last answer."""
DEGRADED_SECONDS = 12.0
"""Time without progress before the service is degraded. So a hang is reported within 20 s of its first request: the
clock may start one probe late."""
COMPUTING_SHARE = 0.1
"""Share of the limit for a stall, after which an engine whose GPU computes is degraded. A step of 16,384 tokens takes
13 s, and over 20 s in a context of 190,000 (two GB10, DeepSeek-V4-Flash, from a field report)."""
LONGEST_COMPILE_SECONDS = 1800.0
"""Time that compilers excuse a request. As EXECUTE_SECONDS, after which vLLM itself gives the step up."""


class Observation(Struct, frozen=True):
    """One probe."""

    at: float
    health: int | None
    """Status of /health; None without an answer."""
    counters: Counters | None = None
    """Counters of /metrics; None where it has none, or could not be read."""
    canary: Completion | None = None
    """Answer to a canary since the last probe; None where none came."""
    unanswered: tuple[PendingRequest, ...] = ()
    computes: bool = False
    """Whether the GPU is known to be at work."""
    compiles: bool = False
    """Whether a compiler of a rank runs, or kernels have come into a cache."""
    idle: bool = False
    """Whether no rank's processes nor its GPU have done anything for IDLE_SECONDS."""


class HealthState(Struct, frozen=True):
    """State between two probes, in monotonic seconds."""

    answered_at: float
    """Last answer of the API server."""
    stall_clock_from: float
    """A stall is counted from here: the last progress, the last idle probe or the last excuse; earlier if a request was
    already late when a canary was sent."""
    proven_at: float
    """Last proof that the engine works: its counters moved, or a canary got a token."""
    proven_after: float
    """The engine is known to have worked after this time, so an older unanswered request is no sign of a hang."""
    probed_at: float
    read_at: float
    """Last time that the counters were read."""
    work: tuple[float, ...] | None = None
    """The counters of work at that time; None where they were never read."""
    is_busy: bool = False
    """Whether requests ran or waited at that time. A canary's token makes an older read void."""
    canary_sent_at: float = float("-inf")
    """When the last canary was sent."""
    canary_pending: bool = False
    """Whether it has no answer yet."""
    canary_failed: str = ""
    """Why the last canary failed; empty where it did not."""
    compiling_since: float | None = None
    """Since when requests have waited for a compiler."""
    computed_at: float = float("-inf")
    """Last time that the GPU was known to be at work."""

    @property
    def troubled(self) -> bool:
        """Whether the last probe had no answer, or showed requests without progress."""
        return min(self.answered_at, self.stall_clock_from) < self.probed_at


def healthy(now: float) -> HealthState:
    """The state of an engine that has just answered."""
    return HealthState(
        answered_at=now, stall_clock_from=now, proven_at=now, proven_after=now, probed_at=now, read_at=now
    )


class Continue(Struct, frozen=True):
    """The decision to keep the engine."""

    state: HealthState
    degraded: str = ""
    """The current problem while the engine still has time; empty where there is none."""
    wants_canary: bool = False
    """Whether a canary is to be sent now."""


Failure = EngineDeadError | StalledError
"""The engine has ended, or makes no tokens."""


class DueCanary(Struct, frozen=True):
    """A canary that is to be sent now. While it waits, a stall is counted from the oldest late request, not from it."""

    stall_clock_from: float


def decide(last: HealthState, probe: Observation, limits: Supervise) -> Continue | Failure:
    """Judge one probe, by the state before it. Pure."""
    if probe.health == DEAD_STATUS:
        return EngineDeadError(f"the engine is dead: /health answers {DEAD_STATUS}")
    state = _end_canary(_read_answers(last, probe), probe)
    state = _excuse_compile(_restart_clock(last, state, probe.at), probe)
    canary = None
    if limits.canary_seconds and not state.canary_pending and probe.health is not None:
        canary = _plan_canary(last, state, probe, limits.canary_seconds)
    if canary is not None:
        state = replace(state, canary_sent_at=probe.at, canary_pending=True, stall_clock_from=canary.stall_clock_from)
    silent_seconds, still_seconds = probe.at - state.answered_at, _still_seconds(state)
    no_answer_reason = f"the API server has not answered for {silent_seconds:.0f} s"
    no_token_reason = f"requests run and no token came for {still_seconds:.0f} s"
    # Not after one slow answer: the time before it may be a pause between probes, as where the agent stood still.
    if silent_seconds >= limits.stall_seconds and last.answered_at < last.probed_at:
        return StalledError(no_answer_reason)
    if _is_stalled(state, probe, limits, still_seconds):
        return StalledError(no_token_reason)
    if _hangs_idle(state, probe, still_seconds):
        return StalledError(f"{no_token_reason}, and for {IDLE_SECONDS:.0f} s no rank used a CPU or a GPU: it hangs")
    degraded = _find_trouble(state, probe, limits, no_answer_reason, no_token_reason)
    return Continue(state, degraded, wants_canary=canary is not None)


def _is_stalled(state: HealthState, probe: Observation, limits: Supervise, still_seconds: float) -> bool:
    # A prompt that fits into one step counts no token before its end. If the engine were ended here, the client would
    # send it again, and end the next engine.
    computed_lately = probe.at - state.computed_at < IDLE_SECONDS
    limit_seconds = limits.stall_seconds * (1 + MAX_EXTENSION * computed_lately)
    return still_seconds >= limit_seconds and _is_current(state, probe)


def _hangs_idle(state: HealthState, probe: Observation, still_seconds: float) -> bool:
    # Not the API server's silence: where it alone is silent, the engine may be idle because it has no requests.
    is_idle = probe.idle and not probe.compiles
    return is_idle and still_seconds >= IDLE_SECONDS and _is_current(state, probe)


def _is_current(state: HealthState, probe: Observation) -> bool:
    """Whether the stall is one of this moment, as the ranks' work and rest are: one of the last read may be over."""
    return state.read_at == probe.at or state.canary_pending or bool(state.canary_failed)


def _find_trouble(
    state: HealthState, probe: Observation, limits: Supervise, no_answer_reason: str, no_token_reason: str
) -> str:
    """What degrades the service; empty where nothing does."""
    if probe.at - state.answered_at >= DEGRADED_SECONDS:
        return no_answer_reason
    if state.canary_failed and not _is_compiling(state):
        return f"a canary completion failed: {state.canary_failed}"
    patience_seconds = max(DEGRADED_SECONDS, limits.stall_seconds * COMPUTING_SHARE if probe.computes else 0)
    return no_token_reason if _still_seconds(state) >= patience_seconds else ""


def _still_seconds(state: HealthState) -> float:
    """How long there was no progress, as far as it is known.

    Without a canary that waits or has failed, only the counters show that: requests may have been served since the last
    read.
    """
    known_until = state.probed_at if state.canary_pending or state.canary_failed else state.read_at
    return max(0.0, known_until - state.stall_clock_from)


def _read_answers(last: HealthState, probe: Observation) -> HealthState:
    """The state after the answers of /health and /metrics, and the look at the GPU."""
    state = replace(
        last,
        probed_at=probe.at,
        answered_at=last.answered_at if probe.health is None else probe.at,
        computed_at=probe.at if probe.computes else last.computed_at,
    )
    if probe.counters is None:
        return state
    state = replace(state, read_at=probe.at, work=probe.counters.work, is_busy=probe.counters.busy)
    if last.work is None or state.work == last.work:
        return state
    # The step that moved them has ended after the last read.
    return replace(state, proven_at=probe.at, proven_after=max(last.read_at, last.proven_after), canary_failed="")


def _end_canary(state: HealthState, probe: Observation) -> HealthState:
    """The state after a canary's answer, if one came."""
    if probe.canary is None:
        return state
    state = replace(state, canary_pending=False)
    if probe.canary.token:
        proven_after = max(state.canary_sent_at, state.proven_after)
        is_busy = state.is_busy and state.read_at == probe.at
        return replace(state, proven_at=probe.at, proven_after=proven_after, is_busy=is_busy, canary_failed="")
    if state.proven_at > state.canary_sent_at:
        return state  # other requests were served since it was sent
    return replace(state, canary_failed=probe.canary.error)


def _restart_clock(last: HealthState, state: HealthState, at: float) -> HealthState:
    """The state with the stall's clock restarted where the probe shows progress, or nothing that waits for it."""
    is_first_read = last.work is None and state.work is not None
    # Without statistics only a failed canary shows that the engine hangs.
    has_waiting_canary = last.canary_pending and last.work is not None
    waits = state.is_busy or has_waiting_canary or bool(state.canary_failed)
    if state.proven_at == at or is_first_read or not waits:
        return replace(state, stall_clock_from=at)
    return state


def _excuse_compile(state: HealthState, probe: Observation) -> HealthState:
    """Let compilers excuse missing tokens, for LONGEST_COMPILE_SECONDS: a request may wait minutes for a kernel."""
    if state.stall_clock_from == probe.at:
        return replace(state, compiling_since=None) if state.compiling_since is not None else state
    if not probe.compiles:
        return state
    since = probe.at if state.compiling_since is None else state.compiling_since
    is_excused = probe.at - since < LONGEST_COMPILE_SECONDS
    return replace(state, compiling_since=since, stall_clock_from=probe.at if is_excused else state.stall_clock_from)


def _is_compiling(state: HealthState) -> bool:
    """Whether compilers excuse missing tokens, or did so just now: a canary would wait for them as requests do, and one
    that has failed meanwhile is no trouble.
    """
    return state.compiling_since is not None and state.probed_at - state.stall_clock_from < DEGRADED_SECONDS


def _plan_canary(last: HealthState, state: HealthState, probe: Observation, canary_seconds: int) -> DueCanary | None:
    """The canary that is due, if one is.

    It is due at once where a request waits too long, again after a failure, `canary_seconds` after the last proof, and
    where requests ran at the last read and the counters have not been read for UNREAD_SECONDS.
    """
    if _is_compiling(state) or state.proven_at == probe.at:
        return None
    if state.canary_failed:  # the stall continues, which the first canary has shown
        is_due = probe.at - state.canary_sent_at >= CANARY_PAUSE_SECONDS
        return DueCanary(state.stall_clock_from) if is_due else None
    if state.stall_clock_from < probe.at:  # requests run: whether they progress is what the counters show
        return DueCanary(probe.at) if probe.at - state.read_at >= UNREAD_SECONDS else None
    # Without statistics a queue looks like a hang, and each canary would wait in it until it fails.
    requests = probe.unanswered if state.work is not None else ()
    waiting_since = (probe.at - request.seconds for request in requests if _is_late(request))
    late_since = min((since for since in waiting_since if since > state.proven_after), default=None)
    if late_since is not None:
        # Not from before the last clock: until then there was progress, or no request.
        return DueCanary(max(late_since, last.stall_clock_from))
    return DueCanary(probe.at) if probe.at - state.proven_at >= canary_seconds else None


def _is_late(request: PendingRequest) -> bool:
    return request.seconds >= (BEGUN_DOUBT_SECONDS if request.begun else DOUBT_SECONDS)
