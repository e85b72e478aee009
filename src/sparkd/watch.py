"""The loop around `supervise.decide`: look at the engine, ask for canaries, until the watch ends."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future

from sparkd.engine.story import Story
from sparkd.host.endpoint import Completion, Counters, Endpoint
from sparkd.lib.http_client import HttpError
from sparkd.pulse import Pulse
from sparkd.supervise import Dead, GoOn, Limits, Observation, Stalled, Watch, decide

LOOK_SECONDS = 5.0
"""Rendering /metrics costs the API server some 5 ms; the container's end needs no look, it is an event."""
ALARMED_LOOK_SECONDS = 0.2
ALARM_SECONDS = 10.0
"""After the engine has logged an error, it is looked at often for this long: its end by itself took 0.5 to 2.6 s."""
CANARY_PAUSE_SECONDS = 30.0
"""Between canaries while they fail."""


class Watcher:
    """Watches one serving engine. `tell(degraded)` is called after each look, "" when all is well."""

    def __init__(
        self,
        pulse: Pulse,
        endpoint: Endpoint,
        story: Callable[[], Story],
        limits: Limits,
        canary_timeout_seconds: float,
        tell: Callable[[str], None],
    ) -> None:
        self._pulse = pulse
        self._endpoint = endpoint
        self._story = story
        self._limits = limits
        self._canary_timeout_seconds = canary_timeout_seconds
        self._tell = tell
        now = time.monotonic()
        self._watch = Watch(answered_at=now, moved_at=now, proven_at=now)
        self._looking: Future[tuple[int | None, Counters | None]] | None = None
        self._canary: Future[Completion] | None = None
        self._look_at = now
        self._canary_at = float("-inf")

    def run(self, pidfd: int) -> Dead | Stalled | None:
        """Until the engine must be given up; None when its container has ended."""
        while True:
            now = time.monotonic()
            if self._looking is None and now >= self._look_at:
                self._looking = self._pulse.submit(self._look())
            if self._looking is not None and self._looking.done():
                decision = self._decide(now, *self._looking.result())
                if not isinstance(decision, GoOn):
                    return decision
            if self._pulse.wait(self._pause(now), pidfd):
                return None

    def _pause(self, now: float) -> float:
        failing = self._story().failing_since
        if failing is not None and now - failing < ALARM_SECONDS:
            self._look_at = min(self._look_at, now + ALARMED_LOOK_SECONDS)
        return LOOK_SECONDS if self._looking is not None else max(0.0, self._look_at - now)

    async def _look(self) -> tuple[int | None, Counters | None]:
        try:
            health = await self._endpoint.health()
        except HttpError:
            return None, None
        try:
            return health, await self._endpoint.counters()
        except HttpError:
            return health, None

    def _decide(self, now: float, health: int | None, counters: Counters | None) -> GoOn | Dead | Stalled:
        self._looking = None
        self._look_at = now + LOOK_SECONDS
        decision = decide(self._watch, Observation(now, health, counters, self._take_canary()), self._limits)
        if isinstance(decision, GoOn):
            self._watch = decision.watch
            if decision.wants_canary and self._canary is None and now - self._canary_at >= CANARY_PAUSE_SECONDS:
                self._canary_at = now
                self._canary = self._pulse.submit(self._ask_canary())
            self._tell(decision.degraded)
        return decision

    async def _ask_canary(self) -> Completion:
        try:
            return await self._endpoint.complete(self._canary_timeout_seconds)
        except HttpError as error:
            return Completion(token=False, said=str(error))

    def _take_canary(self) -> Completion | None:
        if self._canary is None or not self._canary.done():
            return None
        answer, self._canary = self._canary.result(), None
        return answer
