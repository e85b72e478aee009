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
"""Time that /metrics may fail while requests run, before a canary decides whether the engine works; where canaries are
off, before that is reported as unknown."""
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
    """A stall is counted from here: the last progress, the last idle probe or the last excuse (`_restart_clock`);
    earlier if a request was already late when a canary was sent (`_send_canary`)."""
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
    deferred_since: float = float("inf")
    """Since when the engine has deferred all the requests that it has."""

    @property
    def troubled(self) -> bool:
        """Whether the last probe had no answer, or showed requests without progress."""
        return min(self.answered_at, self.stall_clock_from) < self.probed_at

    @property
    def silent_seconds(self) -> float:
        """How long the API server has not answered."""
        return self.probed_at - self.answered_at

    @property
    def awaits_token(self) -> bool:
        """Whether a canary has got no token: it has no answer yet, or it failed. Each probe shows that by itself."""
        return self.canary_pending or bool(self.canary_failed)

    @property
    def known_until(self) -> float:
        """Until when it is known whether there was progress.

        Without a canary that awaits a token only the counters show it: requests may be served between two reads.
        """
        return self.probed_at if self.awaits_token else self.read_at

    @property
    def still_seconds(self) -> float:
        """How long there was no progress, as far as it is known."""
        return max(0.0, self.known_until - self.stall_clock_from)

    @property
    def is_compiling(self) -> bool:
        """Whether compilers excuse missing tokens, or did so just now: a canary would wait for them as requests do, and
        one that has failed meanwhile is no trouble.
        """
        return self.compiling_since is not None and self.probed_at - self.stall_clock_from < DEGRADED_SECONDS


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


def decide(last: HealthState, probe: Observation, limits: Supervise) -> Continue | Failure:
    """Judge one probe, by the state before it. Pure."""
    if probe.health == DEAD_STATUS:
        return EngineDeadError(f"the engine is dead: /health answers {DEAD_STATUS}")
    is_asleep = probe.counters is not None and probe.counters.asleep
    sleep = "the engine sleeps: requests wait until a client sends POST /wake_up" if is_asleep else ""
    if sleep and (probe.idle or probe.computes):  # only another program can compute; else a wake-up may hang
        return Continue(healthy(probe.at), sleep)
    state = _end_canary(_read_answers(last, probe), probe)
    state = _restart_clock(last, state, probe)
    wants_canary = _is_canary_due(state, probe, limits.canary_seconds)
    if wants_canary:
        state = _send_canary(last, state, probe)
    if (failure := _find_stall(last, state, probe, limits)) is not None:
        return failure
    return Continue(state, sleep or _find_trouble(state, probe, limits), wants_canary)


def _read_answers(last: HealthState, probe: Observation) -> HealthState:
    """The state after the answers of /health and /metrics, and the look at the GPU."""
    state = replace(
        last,
        probed_at=probe.at,
        answered_at=last.answered_at if probe.health is None else probe.at,
        computed_at=probe.at if probe.computes else last.computed_at,
    )
    if (counters := probe.counters) is None:
        return state
    since = min(last.deferred_since, probe.at) if counters.deferred and not counters.busy else float("inf")
    state = replace(state, read_at=probe.at, work=counters.work, is_busy=counters.busy, deferred_since=since)
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


def _restart_clock(last: HealthState, state: HealthState, probe: Observation) -> HealthState:
    """The state with the stall's clock restarted where the probe shows progress, or nothing that waits for it.

    Compilers restart it too, for LONGEST_COMPILE_SECONDS: a request may wait minutes for a kernel.
    """
    is_first_read = last.work is None and state.work is not None
    # Without statistics only a failed canary shows that the engine hangs.
    has_waiting_canary = last.canary_pending and last.work is not None
    waits = state.is_busy or has_waiting_canary or bool(state.canary_failed)
    if probe.at in (state.proven_at, state.stall_clock_from) or is_first_read or not waits:
        return replace(state, stall_clock_from=probe.at, compiling_since=None)
    if not probe.compiles:
        return state
    since = probe.at if state.compiling_since is None else state.compiling_since
    is_excused = probe.at - since < LONGEST_COMPILE_SECONDS
    return replace(state, compiling_since=since, stall_clock_from=probe.at if is_excused else state.stall_clock_from)


def _is_canary_due(state: HealthState, probe: Observation, canary_seconds: int) -> bool:
    """Whether a canary is to be sent now. `canary_seconds`: 0 for no canaries.

    It is due at once where a request waits too long, again after a failure, `canary_seconds` after the last proof, and
    where requests ran at the last read and the counters have not been read for UNREAD_SECONDS.
    """
    if not canary_seconds or state.canary_pending or probe.health is None:
        return False
    if state.is_compiling or state.proven_at == probe.at:
        return False
    if state.canary_failed:
        return probe.at - state.canary_sent_at >= CANARY_PAUSE_SECONDS
    if state.stall_clock_from < probe.at:  # requests run: whether they progress is what the counters show
        return probe.at - state.read_at >= UNREAD_SECONDS
    return _find_late_since(state, probe) is not None or probe.at - state.proven_at >= canary_seconds


def _send_canary(last: HealthState, state: HealthState, probe: Observation) -> HealthState:
    """The state with a canary that is sent now, and from when a stall is counted while it waits."""
    state = replace(state, canary_sent_at=probe.at, canary_pending=True)
    if state.canary_failed:  # the stall continues, which the first canary has shown
        return state
    if state.stall_clock_from < probe.at:  # requests may have been served since the last read
        return replace(state, stall_clock_from=probe.at)
    late_since = _find_late_since(state, probe)
    if late_since is None:
        return state
    # Not from before the last clock: until then there was progress, or no request.
    return replace(state, stall_clock_from=max(late_since, last.stall_clock_from))


def _find_late_since(state: HealthState, probe: Observation) -> float | None:
    """Since when the oldest late request has waited, of those that are newer than the last proof; None without one."""
    # Without statistics a queue looks like a hang, and each canary would wait in it until it fails.
    requests = probe.unanswered if state.work is not None else ()
    waiting_since = (probe.at - request.seconds for request in requests if _is_late(request))
    return min((since for since in waiting_since if since > state.proven_after), default=None)


def _is_late(request: PendingRequest) -> bool:
    return request.seconds >= (BEGUN_DOUBT_SECONDS if request.begun else DOUBT_SECONDS)


def _find_stall(last: HealthState, state: HealthState, probe: Observation, limits: Supervise) -> StalledError | None:
    """Why the engine is given up; None where it has time, or the stall may be over."""
    # Not after one slow answer: the time before it may be a pause between probes, as where the agent stood still.
    if state.silent_seconds >= limits.stall_seconds and last.answered_at < last.probed_at:
        return StalledError(_describe_silence(state))
    if state.known_until < probe.at:
        return None  # the ranks' work and rest are of this moment, and a stall of the last read may be over
    # A prompt that fits into one step counts no token before its end. If the engine were ended here, the client would
    # send it again, and end the next engine.
    computed_lately = probe.at - state.computed_at < IDLE_SECONDS
    if state.still_seconds >= limits.stall_seconds * (1 + MAX_EXTENSION * computed_lately):
        return StalledError(_describe_stall(state))
    # Not the API server's silence: where it alone is silent, the engine may be idle because it has no requests.
    if probe.idle and not probe.compiles and state.still_seconds >= IDLE_SECONDS:
        hang = f"for {IDLE_SECONDS:.0f} s no rank used a CPU or a GPU: it hangs"
        return StalledError(f"{_describe_stall(state)}, and {hang}")
    return None


def _find_trouble(state: HealthState, probe: Observation, limits: Supervise) -> str:
    """What degrades the service; empty where nothing does."""
    if state.silent_seconds >= DEGRADED_SECONDS:
        return _describe_silence(state)
    if state.canary_failed and not state.is_compiling:
        return f"a canary completion failed: {state.canary_failed}"
    patience_seconds = max(DEGRADED_SECONDS, limits.stall_seconds * COMPUTING_SHARE if probe.computes else 0)
    if state.still_seconds >= patience_seconds:
        return _describe_stall(state)
    if (seconds := probe.at - state.deferred_since) >= limits.stall_seconds:
        return f"all requests are deferred for {seconds:.0f} s: they wait for clients, a KV cache, or a LoRA's place"
    unread_seconds = probe.at - state.read_at
    if state.work is not None and not limits.canary_seconds and unread_seconds >= UNREAD_SECONDS:
        unread = f"/metrics could not be read for {unread_seconds:.0f} s, and canaries are off"
        return f"{unread}: nothing shows whether tokens come; supervise.canary_seconds = 300 would"
    return ""


def _describe_silence(state: HealthState) -> str:
    return f"the API server has not answered for {state.silent_seconds:.0f} s"


def _describe_stall(state: HealthState) -> str:
    return f"requests run and no token came for {state.still_seconds:.0f} s"
