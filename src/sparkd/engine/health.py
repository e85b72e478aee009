"""The health of a serving engine: probe, decide, continue or give up. What decides is pure.

vLLM's exit code and /health prove little: an engine that lost a rank exits 0, and /health stays 200. The tests are that
tokens and iterations move while requests run, and that a canary completion gets a token when nothing runs.

A GB10 that stays slow under load is reported, and ends nothing: a slow GPU still serves.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future

from msgspec import Struct, field
from msgspec.structs import replace

from sparkd.config.settings import Supervise
from sparkd.engine.log_lines import LoadProgress
from sparkd.host.gpu import GpuClocks, read_clocks
from sparkd.lib.errors import EngineEndedError, StalledError
from sparkd.lib.http_client import HttpError
from sparkd.lib.log import Events
from sparkd.lib.main_loop import MainLoop
from sparkd.vllm.api import Completion, Counters, Endpoint

DEAD_STATUS = 503
"""vLLM's /health once it knows that its engine is dead."""
PROBE_SECONDS = 5.0
"""Rendering /metrics costs the API server some 5 ms. The container's end is an event and needs no probe."""
ALARMED_PROBE_SECONDS = 0.2
ALARM_SECONDS = 10.0
"""How long probes are frequent after an error in the log: engines ended 0.5 to 2.6 s later (seen)."""
CANARY_PAUSE_SECONDS = 30.0
"""Between failing canaries."""

THROTTLE_ID = "gpu-clocks"
THROTTLE_HINT = "shut the node down, unplug it for 60 s, start it again; if it happens again, replace the node"
CLOCKS_SECONDS = 30.0
"""Between two readings of the clocks, and how long they must be low."""
GB10 = "GB10"
BUSY_PERCENT = 90
STUCK_MHZ, STUCK_WATTS = 850, 30.0
"""A throttled GB10 was seen at 500 to 850 MHz and 14 to 30 W under load; normal is above 2 GHz and 45 W."""


class Observation(Struct, frozen=True):
    """One probe. `health`: the status of /health, None without an answer. `counters`: None where /metrics has none.

    `canary`: the answer to a canary since the last probe, None where none came.
    """

    at: float
    health: int | None
    counters: Counters | None = None
    canary: Completion | None = None


class HealthState(Struct, frozen=True):
    """State between two probes, in monotonic seconds."""

    answered_at: float
    """Last answer of the API server."""
    moved_at: float
    """Last time that work progressed, or that there was none."""
    proven_at: float
    work: tuple[float, float, float] | None = None
    canary_failed: str = ""


def _healthy(now: float) -> HealthState:
    return HealthState(answered_at=now, moved_at=now, proven_at=now)


class Continue(Struct, frozen=True):
    state: HealthState
    degraded: str = ""
    """The current problem while the engine still has time; empty where there is none."""
    wants_canary: bool = False


Failure = EngineEndedError | StalledError
"""The engine has ended, or makes no tokens."""


def decide(state: HealthState, seen: Observation, limits: Supervise) -> Continue | Failure:
    if seen.health == DEAD_STATUS:
        return EngineEndedError(f"the engine is dead: /health answers {DEAD_STATUS}")
    state = _update(state, seen)
    silent = seen.at - state.answered_at
    still = seen.at - state.moved_at
    no_answer = f"the API server has not answered for {silent:.0f} s"
    no_token = f"requests run and no token came for {still:.0f} s"
    if silent >= limits.stall_seconds:
        return StalledError(no_answer)
    if still >= limits.stall_seconds:
        return StalledError(no_token)
    degraded = ""
    if state.canary_failed:
        degraded = f"a canary completion failed: {state.canary_failed}"
    elif silent >= limits.stall_seconds / 10:  # reported after a tenth of the limit
        degraded = no_answer
    elif still >= limits.stall_seconds / 10:
        degraded = no_token
    due = 0 < limits.canary_seconds <= seen.at - state.proven_at
    return Continue(state, degraded, due and (still == 0 or bool(state.canary_failed)))


def _update(state: HealthState, seen: Observation) -> HealthState:
    if seen.health is not None:
        state = replace(state, answered_at=seen.at)
    if seen.canary is not None and seen.canary.token:
        state = replace(state, proven_at=seen.at, moved_at=seen.at, canary_failed="")
    elif seen.canary is not None:
        state = replace(state, canary_failed=seen.canary.said)
    if seen.counters is None:
        # Without statistics only a failed canary shows that the engine hangs.
        idle = not state.canary_failed
        return replace(state, moved_at=seen.at) if idle else state
    moved = state.work is None or seen.counters.work != state.work
    if moved and state.work is not None:
        state = replace(state, proven_at=seen.at, canary_failed="")
    if moved or not (seen.counters.busy or state.canary_failed):
        state = replace(state, moved_at=seen.at)
    return replace(state, work=seen.counters.work)


class HealthMonitor(Struct):
    """Probes one serving engine, and requests canaries. `on_check(degraded)` is called after each probe."""

    loop: MainLoop
    endpoint: Endpoint
    progress: Callable[[], LoadProgress]
    limits: Supervise
    completion_seconds: float
    """For one canary."""
    on_check: Callable[[str], None]
    _state: HealthState = field(default_factory=lambda: _healthy(time.monotonic()))
    _probing: Future[tuple[int | None, Counters | None]] | None = None
    _canary: Future[Completion] | None = None
    _probe_at: float = 0.0
    _canary_at: float = float("-inf")

    def run(self, pidfd: int) -> Failure | None:
        """Until the engine is given up; None when its container ended."""
        while True:
            now = time.monotonic()
            if self._probing is None and now >= self._probe_at:
                self._probing = self.loop.submit(self._probe())
            if self._probing is not None and self._probing.done():
                decision = self._decide(now, *self._probing.result())
                if not isinstance(decision, Continue):
                    return decision
            if self.loop.wait(self._pause(now), pidfd):
                return None

    def _pause(self, now: float) -> float:
        failing = self.progress().failing_since
        if failing is not None and now - failing < ALARM_SECONDS:
            self._probe_at = min(self._probe_at, now + ALARMED_PROBE_SECONDS)
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
        self._probe_at = now + PROBE_SECONDS
        canary = None
        if self._canary is not None and self._canary.done():
            canary, self._canary = self._canary.result(), None
        decision = decide(self._state, Observation(now, health, counters, canary), self.limits)
        if isinstance(decision, Continue):
            self._state = decision.state
            if decision.wants_canary and self._canary is None and now - self._canary_at >= CANARY_PAUSE_SECONDS:
                self._canary_at = now
                self._canary = self.loop.submit(self._request_canary())
            self.on_check(decision.degraded)
        return decision

    async def _request_canary(self) -> Completion:
        try:
            return await self.endpoint.complete(self.completion_seconds)
        except HttpError as error:
            return Completion(token=False, said=str(error))


Clocks = tuple[GpuClocks, ...]


class ThrottleState(Struct, frozen=True):
    """`since`: monotonic, the first of the consecutive slow readings under load."""

    since: float | None = None
    warning: str = ""


def decide_throttle(state: ThrottleState, seen: Clocks, now: float) -> ThrottleState:
    """After one more reading. An idle GPU proves neither throttling nor recovery. Pure."""
    loaded = [
        (one, one.sm_mhz <= STUCK_MHZ and one.power_watts <= STUCK_WATTS)
        for one in seen
        if GB10 in one.name
        and (one.utilization_percent or 0) >= BUSY_PERCENT
        and one.sm_mhz is not None
        and one.power_watts is not None
    ]
    if not loaded:
        return ThrottleState(None, state.warning)
    stuck = next((one for one, is_slow in loaded if is_slow), None)
    if stuck is None:
        return ThrottleState()
    since = now if state.since is None else state.since
    if state.warning or now - since < CLOCKS_SECONDS:
        return ThrottleState(since, state.warning)
    held = f", held down by {' and '.join(stuck.held_by)}" if stuck.held_by else ""
    return ThrottleState(since, f"the GPU is slow: {stuck.sm_mhz} MHz and {stuck.power_watts:.0f} W under load{held}")


class GpuThrottleMonitor(Struct):
    """For the main thread. `start` makes the thread of each reading: a hanging driver blocks nothing else."""

    start: Callable[[Callable[[], Clocks]], Future[Clocks]]
    events: Events
    read: Callable[[], Clocks] = read_clocks
    clock: Callable[[], float] = time.monotonic
    _state: ThrottleState = ThrottleState()
    _reading: Future[Clocks] | None = None
    _read_at: float = float("-inf")

    def check(self) -> str:
        """The current warning; empty where there is none."""
        now = self.clock()
        if self._reading is not None and self._reading.done():
            before, self._state = self._state.warning, decide_throttle(self._state, self._reading.result(), now)
            self._reading = None
            if self._state.warning and not before:
                self.events.warning("gpu.throttle.detected", reason=self._state.warning, hint=THROTTLE_HINT)
            elif before and not self._state.warning:
                self.events.info("gpu.throttle.ended")
        if self._reading is None and now >= self._read_at:
            self._read_at = now + CLOCKS_SECONDS
            self._reading = self.start(self.read)
        return self._state.warning
