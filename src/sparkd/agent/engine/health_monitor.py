"""Probes a serving engine and sends it canaries, until health.py gives it up."""

import time
from collections.abc import Callable

from msgspec import Struct, field
from msgspec.structs import replace

from sparkd.agent.engine.health import Continue, Failure, HealthState, Observation, decide, healthy
from sparkd.agent.engine.load_progress import LoadProgress
from sparkd.base.config.settings import Supervise
from sparkd.base.host.sockets import PendingRequest
from sparkd.base.lib.http_client import HttpError
from sparkd.base.lib.main_loop import MainLoop, Outcome, never
from sparkd.base.status.figures import HealthReport
from sparkd.base.vllm.api import Completion, Endpoint
from sparkd.base.vllm.counters import Counters

PROBE_SECONDS = 5.0
"""Pause between two probes. Rendering /metrics costs the API server some 5 ms. The container's end needs no probe."""
TROUBLED_PROBE_SECONDS = 1.0
"""Pause after a probe that had no answer, or found requests and no progress."""
ALARM_SECONDS = 10.0
"""How long probes are frequent after an error in the log: engines ended 0.5 to 2.6 s after it (seen)."""


class HealthMonitor(Struct):
    """Probes one serving engine, and requests canaries."""

    loop: MainLoop
    endpoint: Endpoint
    progress: Callable[[], LoadProgress]
    limits: Supervise
    completion_seconds: float
    """The limit of one canary."""
    on_check: Callable[[str, Counters | None, HealthReport], None]
    """Called after each probe of an engine that is kept, with what degrades the service (empty where nothing does)."""
    unanswered: Callable[[], tuple[PendingRequest, ...]] = tuple
    """Requests to the API that wait for an answer; none where the kernel's sockets are not read."""
    computes: Callable[[], bool] = never
    """Whether the GPU is known to be at work."""
    compiles: Callable[[], bool] = never
    """Whether any rank compiles a kernel."""
    idle: Callable[[], bool] = never
    """Whether all ranks have done nothing for IDLE_SECONDS."""
    unreachable: Callable[[], str] = str
    """Why nobody can reach the API, whatever the engine does; empty where nothing is in the way."""
    troubled: Callable[[], bool] = never
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
                decision = self._handle_probe(now, *self._probing.result())
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

    def _handle_probe(self, now: float, health: int | None, counters: Counters | None) -> Continue | Failure:
        self._probing = None
        self.figures = replace(self.figures, probe_seconds=round(now - self._probe_sent_at, 1))
        if health is None and (reason := self.unreachable()):
            # What was known before stays. A canary on its way finds no address, either.
            self._state = replace(
                self._state, answered_at=now, probed_at=now, stall_clock_from=now, canary_pending=False
            )
            self._canary, self._probe_at = None, now + PROBE_SECONDS
            self.on_check(reason, None, self.figures)
            return Continue(self._state, reason)
        # Only while it matters: with each call the driver is queried more often, or files in the caches are counted.
        troubled = self._state.troubled or (counters is not None and counters.asleep)
        computes = troubled and self.computes()
        compiles = (troubled or self._state.compiling_since is not None) and self.compiles()
        idle = troubled and self.idle()
        probe = Observation(now, health, counters, self._take_canary(), self.unanswered(), computes, compiles, idle)
        decision = decide(self._state, probe, self.limits)
        if isinstance(decision, Continue):
            self._state = decision.state
            self._probe_at = now + (TROUBLED_PROBE_SECONDS if decision.state.troubled else PROBE_SECONDS)
            if decision.wants_canary:
                self._canary = self.loop.start(self._request_canary())
            self.on_check(decision.degraded, counters, self.figures)
        return decision

    def _take_canary(self) -> Completion | None:
        if self._canary is None or not self._canary.done():
            return None
        (canary, seconds), self._canary = self._canary.result(), None
        self.figures = replace(
            self.figures,
            canary_seconds=round(seconds, 3),
            canary_at=round(time.time()),
            canaries=self.figures.canaries + 1,
            canaries_failed=self.figures.canaries_failed + (not canary.token),
        )
        return canary

    async def _request_canary(self) -> tuple[Completion, float]:
        began = time.monotonic()
        try:
            answer = await self.endpoint.complete(self.completion_seconds)
        except HttpError as error:
            answer = Completion(token=False, error=str(error))
        return answer, time.monotonic() - began
