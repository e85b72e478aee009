"""Figures of a serving engine from its counters, and warnings of a slow GPU from its clocks. What decides is pure."""

import math
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple

from msgspec import Struct
from msgspec.structs import astuple

from sparkd.base.host.gpu import GpuClocks, read_clocks
from sparkd.base.lib.log import Events
from sparkd.base.lib.main_loop import Outcome
from sparkd.base.status.figures import ActivityReport
from sparkd.base.vllm.counters import Counters

RATE_SECONDS = 4.0
"""Tokens a second are measured over at least this long: a troubled engine is probed more often."""
WINDOW_SECONDS = 600.0
"""Span of the shares: of the prefix cache, and of the tokens that a drafter proposed."""
RECENT_SECONDS = 60.0
"""Span of the time to first token."""
MOST_TOKENS = 1e9
"""Limit of tokens a second. A larger figure is no engine's, and would make the report unreadable for other nodes."""
MOST_REQUESTS, MOST_SECONDS = 1e6, 1e6
"""The same for requests, and for the time to first token."""


class Reading(NamedTuple):
    at: float
    """Monotonic seconds."""
    counters: Counters


class ActivityMeter:
    """Measures one engine."""

    def __init__(self) -> None:
        self._readings: deque[Reading] = deque()
        self._rates = 0.0, 0.0
        """Prompt and generated tokens a second, between the last two readings that were kept."""

    def advance(self, at: float, counters: Counters | None) -> ActivityReport | None:
        """The figures after one more reading; None without counters, and for values that no engine has."""
        if counters is None or not all(0 <= value < math.inf for value in astuple(counters)):
            return None
        readings = self._readings
        if readings and readings[-1].counters.generation_tokens > counters.generation_tokens:
            readings.clear()  # an engine's count never falls: this is another one
        if not readings or at - readings[-1].at >= RATE_SECONDS:
            if readings:
                earlier, seconds = readings[-1].counters, at - readings[-1].at
                self._rates = (
                    _compute_rate(counters.prompt_tokens - earlier.prompt_tokens, seconds),
                    _compute_rate(counters.generation_tokens - earlier.generation_tokens, seconds),
                )
            readings.append(Reading(at, counters))
        while at - readings[0].at > WINDOW_SECONDS:
            readings.popleft()
        oldest = readings[0].counters
        minute_ago = next(reading.counters for reading in readings if at - reading.at <= RECENT_SECONDS)
        answers = counters.first_tokens - minute_ago.first_tokens
        waited_seconds = counters.first_token_seconds - minute_ago.first_token_seconds
        return ActivityReport(
            running=int(min(counters.running, MOST_REQUESTS)),
            waiting=int(min(counters.waiting, MOST_REQUESTS)),
            input_tokens_per_second=self._rates[0],
            output_tokens_per_second=self._rates[1],
            kv_cache_use=round(min(counters.kv_usage, 1.0), 4),  # so fine that one request shows in a large cache
            prefix_hit_rate=_compute_share(
                counters.prefix_hits - oldest.prefix_hits, counters.prefix_queries - oldest.prefix_queries
            ),
            draft_acceptance=_compute_share(counters.accepted - oldest.accepted, counters.drafted - oldest.drafted),
            first_token_seconds=round(min(max(0.0, waited_seconds / answers), MOST_SECONDS), 3)
            if answers > 0
            else None,
        )


def _compute_rate(tokens: float, seconds: float) -> float:
    return round(min(max(0.0, tokens / seconds), MOST_TOKENS), 1)


def _compute_share(part: float, whole: float) -> float | None:
    return round(min(max(0.0, part / whole), 1.0), 3) if whole > 0 else None


THROTTLE_ID = "gpu-clocks"
THROTTLE_HINT = "shut the node down, unplug it for 60 s, start it again; if it happens again, replace the node"
CLOCKS_SECONDS = 30.0
"""Pause between two readings of the clocks, and how long they must be low."""
HURRIED_SECONDS = 3.0
"""Pause between two readings while nothing else shows whether the engine works."""
GB10 = "GB10"
BUSY_PERCENT = 90
STUCK_MHZ = 850
"""A GB10 with a latched clock was seen at 500 to 850 MHz under load, mostly at 14 to 30 W; one worked at half speed at
702 MHz (eugr/spark-vllm-docker#334). Normal is above 2 GHz and 45 W; some limit the clock, mostly to 2,100 MHz."""
IDLE_WATTS, WORK_WATTS = 10.0, 30.0
"""A GPU that draws less than the first has no load, whatever utilization it reports of the last moment; one that draws
more than the second works, and does not only wait for another rank."""

Clocks = tuple[GpuClocks, ...]


def computes(gpus: Clocks) -> bool:
    """Whether a GPU is at work. One that waits for another rank is as busy, at 15 to 27 W."""
    return any(_is_loaded(gpu) and (gpu.power_watts or 0) > WORK_WATTS for gpu in gpus)


def _is_loaded(gpu: GpuClocks) -> bool:
    draws_power = gpu.power_watts is None or gpu.power_watts >= IDLE_WATTS
    return GB10 in gpu.name and (gpu.utilization_percent or 0) >= BUSY_PERCENT and draws_power


class ThrottleState(Struct, frozen=True):
    """State between two readings of the clocks. `since`: the first of the slow ones in a row, monotonic."""

    since: float | None = None
    warning: str = ""


def decide_throttle(state: ThrottleState, gpus: Clocks, now: float) -> ThrottleState:
    """The state after one more reading. An idle GPU proves neither throttling nor recovery. Pure."""
    loaded = [(gpu, gpu.sm_mhz <= STUCK_MHZ) for gpu in gpus if _is_loaded(gpu) and gpu.sm_mhz is not None]
    if not loaded:
        return ThrottleState(None, state.warning)
    stuck = next((gpu for gpu, is_slow in loaded if is_slow), None)
    if stuck is None:
        return ThrottleState()
    since = now if state.since is None else state.since
    if state.warning or now - since < CLOCKS_SECONDS:
        return ThrottleState(since, state.warning)
    held = f", held down by {' and '.join(stuck.held_by)}" if stuck.held_by else ""
    watts = f" and {stuck.power_watts:.0f} W" if stuck.power_watts is not None else ""
    return ThrottleState(since, f"the GPU is slow: {stuck.sm_mhz} MHz{watts} under load{held}")


class GpuThrottleMonitor(Struct):
    """Watches the clocks of the GPUs, for the main thread.

    `start` makes the thread of each reading: a hanging driver blocks nothing else.
    """

    start: Callable[[Callable[[], Clocks]], Outcome[Clocks]]
    events: Events
    read: Callable[[], Clocks] = read_clocks
    clock: Callable[[], float] = time.monotonic
    _state: ThrottleState = ThrottleState()
    _gpus: Clocks = ()
    _reading: Outcome[Clocks] | None = None
    _started_at: float = float("-inf")
    _is_hurried: bool = False

    def computes(self) -> bool:
        """Whether a GPU is at work by a recent reading; False without one.

        Each call makes the next reading come soon, after HURRIED_SECONDS.
        """
        self._is_hurried = True
        return computes(self._gpus) and self.clock() - self._started_at <= 2 * HURRIED_SECONDS

    def idle(self) -> bool:
        """Whether no GPU does anything, by a recent reading; False without one. Hurries the next one, as `computes`."""
        self._is_hurried = True
        is_recent = bool(self._gpus) and self.clock() - self._started_at <= 3 * HURRIED_SECONDS
        return is_recent and all(gpu.utilization_percent == 0 for gpu in self._gpus)

    @property
    def first(self) -> GpuClocks | None:
        """The last reading of the first GPU."""
        return self._gpus[0] if self._gpus else None

    def check(self) -> str:
        """The current warning; empty where there is none."""
        now = self.clock()
        if self._reading is not None and self._reading.done():
            with suppress(BlockingIOError):  # no thread for it
                self._gpus = self._reading.result()
            earlier_warning, self._state = self._state.warning, decide_throttle(self._state, self._gpus, now)
            self._reading = None
            if self._state.warning and not earlier_warning:
                self.events.warning("gpu.throttle.detected", reason=self._state.warning, hint=THROTTLE_HINT)
            elif earlier_warning and not self._state.warning:
                self.events.info("gpu.throttle.ended")
        pause_seconds = HURRIED_SECONDS if self._is_hurried else CLOCKS_SECONDS
        if self._reading is None and now - self._started_at >= pause_seconds:
            self._started_at, self._is_hurried = now, False
            self._reading = self.start(self.read)
        return self._state.warning
