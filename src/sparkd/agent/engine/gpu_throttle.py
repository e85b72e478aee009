"""Judges by its clocks whether a GPU works, idles, or is slow under load, and reports it. What decides is pure."""

import time
from collections.abc import Callable
from contextlib import suppress

from msgspec import Struct

from sparkd.base.host.gpu import GpuClocks, read_clocks
from sparkd.base.lib.log import Events
from sparkd.base.lib.main_loop import Outcome
from sparkd.base.status.figures import GpuReport
from sparkd.base.status.model import FindingReport
from sparkd.base.status.publisher import Reporter

THROTTLE_ID = "gpu-clocks"
THROTTLE_HINT = "sudo poweroff, unplug the node for 60 s, start it again; if it happens again, replace the node"
CLOCKS_SECONDS = 30.0
"""Pause between two readings of the clocks, and how long they must be low."""
HURRIED_SECONDS = 3.0
"""Pause between two readings while nothing else shows whether the engine works."""
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
    """Whether a GB10 is under load. Another GPU never counts: the limits above are a GB10's."""
    draws_power = gpu.power_watts is None or gpu.power_watts >= IDLE_WATTS
    return "GB10" in gpu.name and (gpu.utilization_percent or 0) >= 90 and draws_power


class ThrottleState(Struct, frozen=True):
    """State between two readings of the clocks."""

    since: float | None = None
    """The first of the slow readings in a row, monotonic."""
    warning: str = ""
    """How slow a GPU is; empty where none is."""


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
    gpus: Clocks = ()
    """The last reading."""
    _reading: Outcome[Clocks] | None = None
    _started_at: float = float("-inf")
    """When the last reading was begun."""
    _is_hurried: bool = False
    """Whether the next one is due after HURRIED_SECONDS."""

    def computes(self) -> bool:
        """Whether a GPU is at work by a recent reading; False without one.

        Each call makes the next reading come soon, after HURRIED_SECONDS.
        """
        self._is_hurried = True
        return computes(self.gpus) and self.clock() - self._started_at <= 2 * HURRIED_SECONDS

    def idle(self) -> bool:
        """Whether no GPU does anything, by a recent reading; False without one. Hurries the next one, as `computes`."""
        self._is_hurried = True
        is_recent = bool(self.gpus) and self.clock() - self._started_at <= 3 * HURRIED_SECONDS
        return is_recent and all(gpu.utilization_percent == 0 for gpu in self.gpus)

    def check(self) -> str:
        """The current warning; empty where there is none."""
        now = self.clock()
        if self._reading is not None and self._reading.done():
            with suppress(BlockingIOError):  # no thread for it
                self.gpus = self._reading.result()
            earlier_warning, self._state = self._state.warning, decide_throttle(self._state, self.gpus, now)
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


def report_gpu(reporter: Reporter, message: str, monitor: GpuThrottleMonitor | None) -> str:
    """Report the GPU. Returns the message, with what slows the GPU, which still serves: a finding, not a phase."""
    if monitor is None:
        return message
    throttling = monitor.check()
    if monitor.gpus:
        sample = monitor.gpus[0]
        watts = None if sample.power_watts is None else round(sample.power_watts)
        figures = GpuReport(sample.name, sample.sm_mhz, watts, sample.temperature_celsius, sample.utilization_percent)
        reporter.update(gpu=figures)
    reporter.replace_finding(
        THROTTLE_ID, FindingReport(THROTTLE_ID, "warn", throttling, THROTTLE_HINT) if throttling else None
    )
    return f"{message}; {throttling}: {THROTTLE_HINT}" if throttling else message
