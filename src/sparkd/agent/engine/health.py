"""The health of a serving engine: probe, decide, continue or give up. What decides is pure.

vLLM's exit code and /health prove little: an engine that lost a rank exits 0, and /health stays 200. The tests are that
its counters move while requests run, and that a canary completion gets a token when nothing runs.

An engine that hangs in its first step after idleness reports no request. The kernel's sockets still show requests that
have no answer, or headers alone. Such a request is a reason for a canary, and no more: its client may be slow.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from msgspec import Struct, field
from msgspec.structs import replace

from sparkd.agent.engine.hang import IDLE_SECONDS
from sparkd.agent.engine.load_progress import LoadProgress
from sparkd.agent.engine.readiness import MAX_EXTENSION
from sparkd.base.config.settings import Supervise
from sparkd.base.host.sockets import Unanswered
from sparkd.base.lib.errors import EngineDeadError, StalledError
from sparkd.base.lib.http_client import HttpError
from sparkd.base.lib.main_loop import MainLoop, Outcome
from sparkd.base.status.figures import HealthReport
from sparkd.base.vllm.api import Completion, Counters, Endpoint

DEAD_STATUS = 503
"""vLLM's /health once it knows that its engine is dead."""
PROBE_SECONDS = 5.0
"""Pause between two probes. Rendering /metrics costs the API server some 5 ms. The container's end needs no probe."""
TROUBLED_PROBE_SECONDS = 1.0
"""Pause after a probe that had no answer, or found requests and no progress."""
ALARM_SECONDS = 10.0
"""How long probes are frequent after an error in the log: engines ended 0.5 to 2.6 s after it (seen)."""
CANARY_PAUSE_SECONDS = 30.0
"""Pause after a canary that failed."""
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
    """Counters of /metrics; None where it has none."""
    canary: Completion | None = None
    """Answer to a canary since the last probe; None where none came."""
    unanswered: tuple[Unanswered, ...] = ()
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
    moved_at: float
    """Last time that work progressed, or that there was none."""
    proven_at: float
    """Last time that the counters moved, or a canary got a token."""
    probed_at: float
    excused_at: float
    """The engine has worked after this time: requests that came before it wait for something else."""
    canary_sent_at: float = float("-inf")
    """When the last canary was sent."""
    canary_pending: bool = False
    """Whether it has no answer yet."""
    work: tuple[float, ...] | None = None
    """The counters of work at the last probe that read them."""
    canary_failed: str = ""
    """Why the last canary failed; empty where it did not."""
    compiling_since: float | None = None
    """Since when requests have waited for a compiler."""
    computed_at: float = float("-inf")
    """Last time that the GPU was known to be at work."""

    @property
    def troubled(self) -> bool:
        """Whether the last probe had no answer, or showed requests without progress."""
        return min(self.answered_at, self.moved_at) < self.probed_at


def healthy(now: float) -> HealthState:
    """The state of an engine that has just answered."""
    return HealthState(answered_at=now, moved_at=now, proven_at=now, probed_at=now, excused_at=now)


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
    state = _excuse_compile(_update(last, probe), probe)
    wants_canary = False
    if limits.canary_seconds and not state.canary_pending and probe.health is not None:
        state, wants_canary = _consider_canary(last, state, probe, limits.canary_seconds)
    silent_seconds = probe.at - state.answered_at
    still_seconds = probe.at - state.moved_at
    no_answer = f"the API server has not answered for {silent_seconds:.0f} s"
    no_token = f"requests run and no token came for {still_seconds:.0f} s"
    if silent_seconds >= limits.stall_seconds:
        return StalledError(no_answer)
    # A prompt that fits into one step counts no token before its end. If the engine were ended here, the client would
    # send it again, and end the next engine.
    computed_lately = probe.at - state.computed_at < IDLE_SECONDS
    if still_seconds >= limits.stall_seconds * (1 + MAX_EXTENSION * computed_lately):
        return StalledError(no_token)
    # Not `silent_seconds`: where only the API server is silent, the engine may be idle because it has no requests.
    if probe.idle and not probe.compiles and still_seconds >= IDLE_SECONDS:
        return StalledError(f"{no_token}, and for {IDLE_SECONDS:.0f} s no rank used a CPU or a GPU: it hangs")
    return Continue(state, _find_trouble(state, probe, limits, no_answer, no_token), wants_canary)


def _find_trouble(state: HealthState, probe: Observation, limits: Supervise, no_answer: str, no_token: str) -> str:
    """What degrades the service; empty where nothing does."""
    if probe.at - state.answered_at >= DEGRADED_SECONDS:
        return no_answer
    if state.canary_failed:
        return f"a canary completion failed: {state.canary_failed}"
    patience_seconds = max(DEGRADED_SECONDS, limits.stall_seconds * COMPUTING_SHARE if probe.computes else 0)
    return no_token if probe.at - state.moved_at >= patience_seconds else ""


def _update(last: HealthState, probe: Observation) -> HealthState:
    """The state after the probe, by its answers, the counters, and the canary's end."""
    work, is_busy = (last.work, False) if probe.counters is None else (probe.counters.work, probe.counters.busy)
    has_moved, state = work != last.work, replace(last, probed_at=probe.at, work=work)
    if probe.health is not None:
        state = replace(state, answered_at=probe.at)
    if probe.computes:
        state = replace(state, computed_at=probe.at)
    if has_moved and last.work is not None:
        state = replace(state, proven_at=probe.at, excused_at=max(last.probed_at, last.excused_at), canary_failed="")
    # Without statistics only a failed canary shows that the engine hangs.
    has_requests = (last.canary_pending and last.work is not None) or is_busy
    if probe.canary is not None:
        state = _end_canary(state, probe.canary, probe.at, moved=has_moved)
        has_moved = has_moved or probe.canary.token
    return replace(state, moved_at=probe.at) if has_moved or not (has_requests or state.canary_failed) else state


def _excuse_compile(state: HealthState, probe: Observation) -> HealthState:
    """Let compilers excuse missing tokens, for LONGEST_COMPILE_SECONDS: a request may wait minutes for a kernel."""
    if state.moved_at == probe.at:
        return replace(state, compiling_since=None) if state.compiling_since is not None else state
    if not probe.compiles:
        return state
    since = probe.at if state.compiling_since is None else state.compiling_since
    is_excused = probe.at - since < LONGEST_COMPILE_SECONDS
    return replace(state, compiling_since=since, moved_at=probe.at if is_excused else state.moved_at)


def _end_canary(state: HealthState, answer: Completion, at: float, *, moved: bool) -> HealthState:
    """The state after a canary's answer. `moved`: the counters show work."""
    state = replace(state, canary_pending=False)
    if answer.token:
        excused_at = max(state.canary_sent_at, state.excused_at)
        return replace(state, proven_at=at, excused_at=excused_at, canary_failed="")
    if moved or (state.work is not None and state.moved_at > state.canary_sent_at):
        return state  # other requests were served since it was sent
    return replace(state, canary_failed=answer.said)


def _consider_canary(
    last: HealthState, state: HealthState, probe: Observation, canary_seconds: int
) -> tuple[HealthState, bool]:
    """The state with the canary, and whether it is to be sent.

    It is sent at once where a request waits too long, again after a failure, and `canary_seconds` after the last proof.
    """
    if state.canary_failed:
        is_due, moved_at = probe.at - state.canary_sent_at >= CANARY_PAUSE_SECONDS, state.moved_at
    elif state.moved_at < probe.at or state.proven_at == probe.at:  # the counters say enough
        return state, False
    else:
        # Without statistics a queue looks like a hang, and each canary would wait in it until it fails.
        waiting_since = [
            probe.at - request.seconds for request in probe.unanswered if state.work is not None and _is_late(request)
        ]
        late_since = min((since for since in waiting_since if since > state.excused_at), default=None)
        is_due = late_since is not None or probe.at - state.proven_at >= canary_seconds
        moved_at = probe.at if late_since is None else max(late_since, last.moved_at)
    if not is_due:
        return state, False
    return replace(state, canary_sent_at=probe.at, canary_pending=True, moved_at=moved_at), True


def _is_late(request: Unanswered) -> bool:
    return request.seconds >= (BEGUN_DOUBT_SECONDS if request.begun else DOUBT_SECONDS)


class HealthMonitor(Struct):
    """Probes one serving engine, and requests canaries. `on_check(degraded, counters)` is called after each probe."""

    loop: MainLoop
    endpoint: Endpoint
    progress: Callable[[], LoadProgress]
    limits: Supervise
    completion_seconds: float
    """The limit of one canary."""
    on_check: Callable[[str, Counters | None], None]
    unanswered: Callable[[], tuple[Unanswered, ...]] = tuple
    """Requests to the API that wait for an answer."""
    computes: Callable[[], bool] = bool
    """Whether the GPU is known to be at work."""
    compiles: Callable[[], bool] = bool
    """Whether any rank compiles a kernel."""
    idle: Callable[[], bool] = bool
    """Whether all ranks have done nothing for IDLE_SECONDS."""
    troubled: Callable[[], bool] = bool
    """Whether something else than the engine degrades the service. When this changes, a probe is made at once."""
    figures: HealthReport = HealthReport()
    _state: HealthState = field(default_factory=lambda: healthy(time.monotonic()))
    _probing: Outcome[tuple[int | None, Counters | None]] | None = None
    _probe_sent_at: float = 0.0
    _canary: Outcome[tuple[Completion, float]] | None = None
    """The answer to the canary, and the seconds that it took."""
    _probe_at: float = 0.0
    _was_troubled: bool = False

    def run(self) -> Failure:
        """Probe until the engine is given up; return why."""
        while True:
            now = time.monotonic()
            if self.troubled() is not self._was_troubled:
                self._was_troubled, self._probe_at = not self._was_troubled, now
            if self._probing is None and now >= self._probe_at:
                self._probing, self._probe_sent_at = self.loop.start(self._probe()), now
            if self._probing is not None and self._probing.done():
                decision = self._decide(now, *self._probing.result())
                if not isinstance(decision, Continue):
                    return decision
            self.loop.wait(self._plan_pause(now))

    def _plan_pause(self, now: float) -> float:
        """Seconds until the next turn. After an error in the log the next probe comes soon."""
        failing_since = self.progress().failing_since
        if failing_since is not None and now - failing_since < ALARM_SECONDS:
            self._probe_at = min(self._probe_at, now + 0.2)
        return PROBE_SECONDS if self._probing is not None else max(0.0, self._probe_at - now)

    async def _probe(self) -> tuple[int | None, Counters | None]:
        health = None
        try:
            health = await self.endpoint.health()
            return health, await self.endpoint.counters()
        except HttpError:
            return health, None

    def _decide(self, now: float, health: int | None, counters: Counters | None) -> Continue | Failure:
        self._probing = None
        self.figures = replace(self.figures, probe_seconds=round(now - self._probe_sent_at, 1))
        canary = None
        if self._canary is not None and self._canary.done():
            (canary, seconds), self._canary = self._canary.result(), None
            self._note_canary(canary, seconds)
        troubled = self._state.troubled
        computes = troubled and self.computes()
        compiles = (troubled or self._state.compiling_since is not None) and self.compiles()
        idle = troubled and self.idle()
        probe = Observation(now, health, counters, canary, self.unanswered(), computes, compiles, idle)
        decision = decide(self._state, probe, self.limits)
        if isinstance(decision, Continue):
            self._state = decision.state
            self._probe_at = now + (TROUBLED_PROBE_SECONDS if decision.state.troubled else PROBE_SECONDS)
            if decision.wants_canary:
                self._canary = self.loop.start(self._request_canary())
            self.on_check(decision.degraded, counters)
        return decision

    def _note_canary(self, canary: Completion, seconds: float) -> None:
        self.figures = replace(
            self.figures,
            canary_seconds=round(seconds, 3),
            canary_at=round(time.time()),
            canaries=self.figures.canaries + 1,
            canaries_failed=self.figures.canaries_failed + (not canary.token),
        )

    async def _request_canary(self) -> tuple[Completion, float]:
        began = time.monotonic()
        try:
            answer = await self.endpoint.complete(self.completion_seconds)
        except HttpError as error:
            answer = Completion(token=False, said=str(error))
        return answer, time.monotonic() - began
