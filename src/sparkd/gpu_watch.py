"""The throttle watch: a GB10 that stays slow under load is told of. It ends nothing: a slow GPU still serves."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Protocol

from msgspec import Struct

from sparkd.host import gpu_clocks
from sparkd.host.gpu_clocks import GpuClocks
from sparkd.lib.log import Events

LOOK_SECONDS = 30.0
LASTING_SECONDS = 30.0
ID = "gpu-clocks"
GB10 = "GB10"
BUSY_PERCENT = 90
STUCK_MHZ = 850
"""GB10 was seen stuck at 500 to 850 MHz and 14 to 30 W under load; in health it runs above 2 GHz at 45 W and more."""
STUCK_WATTS = 30.0
HINT = "shut the node down, unplug it for 60 s, start it again; where it comes back, the node needs replacing"

Clocks = tuple[GpuClocks, ...]


class Slow(Struct, frozen=True):
    """What is remembered of the GPU. `since`: monotonic, from when each look under load found it slow."""

    since: float | None = None
    warning: str = ""


class Starts(Protocol):
    def start(self, work: Callable[[], Clocks]) -> Future[Clocks]: ...


def decide(slow: Slow, seen: Clocks, now: float) -> Slow:
    """After one more look. An idle GPU says nothing: neither that it is slow, nor that it is well again. Pure."""
    loaded = [one for one in seen if _under_load(one)]
    stuck = [one for one in loaded if _is_slow(one)]
    if not loaded:
        return Slow(None, slow.warning)
    if not stuck:
        return Slow()
    since = now if slow.since is None else slow.since
    lasting = now - since >= LASTING_SECONDS
    return Slow(since, slow.warning or (_words(stuck[0]) if lasting else ""))


def _under_load(one: GpuClocks) -> bool:
    known = one.sm_mhz is not None and one.power_watts is not None and one.utilization_percent is not None
    return known and GB10 in one.name and (one.utilization_percent or 0) >= BUSY_PERCENT


def _is_slow(one: GpuClocks) -> bool:
    return (one.sm_mhz or 0) <= STUCK_MHZ and (one.power_watts or 0) <= STUCK_WATTS


def _words(one: GpuClocks) -> str:
    held = f", held down by {' and '.join(one.held_by)}" if one.held_by else ""
    return f"the GPU is slow: {one.sm_mhz} MHz and {one.power_watts:.0f} W under load{held}"


class GpuWatch:
    """For the main thread. Looks each 30 s, beside it: a driver that hangs is left alone."""

    def __init__(
        self,
        starts: Starts,
        events: Events,
        read: Callable[[], Clocks] = gpu_clocks.read,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._starts = starts
        self._events = events
        self._read = read
        self._clock = clock
        self._slow = Slow()
        self._asked: Future[Clocks] | None = None
        self._look_at = float("-inf")

    def look(self) -> str:
        """What is wrong; empty where nothing is known to be."""
        now = self._clock()
        if self._asked is not None and self._asked.done():
            self._remember(decide(self._slow, self._asked.result(), now))
            self._asked = None
        if self._asked is None and now >= self._look_at:
            self._look_at = now + LOOK_SECONDS
            self._asked = self._starts.start(self._read)
        return self._slow.warning

    def _remember(self, slow: Slow) -> None:
        before, self._slow = self._slow.warning, slow
        if slow.warning and not before:
            self._events.warning("gpu.clocks.stuck", reason=slow.warning, hint=HINT)
        elif before and not slow.warning:
            self._events.info("gpu.clocks.recovered")
