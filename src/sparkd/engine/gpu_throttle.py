"""Reports a GB10 that stays slow under load. Ends nothing: a slow GPU still serves."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future

from msgspec import Struct

from sparkd.host.gpu import GpuClocks, read_clocks
from sparkd.lib.log import Events

PROBE_SECONDS = 30.0
LASTING_SECONDS = 30.0
ID = "gpu-clocks"
GB10 = "GB10"
BUSY_PERCENT = 90
STUCK_MHZ = 850
"""A throttled GB10 was seen at 500 to 850 MHz and 14 to 30 W under load; normal is above 2 GHz and 45 W."""
STUCK_WATTS = 30.0
HINT = "shut the node down, unplug it for 60 s, start it again; if it happens again, replace the node"

Clocks = tuple[GpuClocks, ...]


class ThrottleState(Struct, frozen=True):
    """`since`: monotonic, the first of the consecutive slow readings under load."""

    since: float | None = None
    warning: str = ""


def decide(state: ThrottleState, seen: Clocks, now: float) -> ThrottleState:
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
    if state.warning or now - since < LASTING_SECONDS:
        return ThrottleState(since, state.warning)
    held = f", held down by {' and '.join(stuck.held_by)}" if stuck.held_by else ""
    return ThrottleState(since, f"the GPU is slow: {stuck.sm_mhz} MHz and {stuck.power_watts:.0f} W under load{held}")


class GpuThrottleMonitor:
    """For the main thread. `start` makes the thread of each reading: a hanging driver blocks nothing else."""

    def __init__(
        self,
        start: Callable[[Callable[[], Clocks]], Future[Clocks]],
        events: Events,
        read: Callable[[], Clocks] = read_clocks,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._start = start
        self._events = events
        self._read = read
        self._clock = clock
        self._state = ThrottleState()
        self._reading: Future[Clocks] | None = None
        self._read_at = float("-inf")

    def check(self) -> str:
        """The current warning; empty where there is none."""
        now = self._clock()
        if self._reading is not None and self._reading.done():
            before, self._state = self._state.warning, decide(self._state, self._reading.result(), now)
            self._reading = None
            if self._state.warning and not before:
                self._events.warning("gpu.throttle.detected", reason=self._state.warning, hint=HINT)
            elif before and not self._state.warning:
                self._events.info("gpu.throttle.ended")
        if self._reading is None and now >= self._read_at:
            self._read_at = now + PROBE_SECONDS
            self._reading = self._start(self._read)
        return self._state.warning
