"""What a GPU does right now, as NVML says: clock, power, utilization, and why its clocks are held down."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypeVar

from sparkd.host import nvml

T = TypeVar("T")

_REASONS = {
    0x4: "its power cap",
    0x8: "a hardware slowdown",
    0x20: "heat, by its driver",
    0x40: "heat, by its hardware",
    0x80: "an external power brake",
}
"""Of nvmlClocksEventReasons, those that slow a GPU down under load."""


class GpuClocks(NamedTuple):
    """One GPU. None: the driver does not say."""

    name: str
    sm_mhz: int | None
    power_watts: float | None
    utilization_percent: int | None
    """Share of the last moment, up to a second, in which anything ran on it."""
    held_by: tuple[str, ...] = ()
    """Why the driver says that its clocks are down; it has no word for the firmware's own limits."""


def read(deadline_seconds: float = nvml.DEADLINE_SECONDS) -> tuple[GpuClocks, ...]:
    """One for each GPU; empty where there is none, or its driver does not answer."""
    return nvml.answer_within(deadline_seconds, query) or ()


def query() -> tuple[GpuClocks, ...]:
    """What the driver reports, however long it takes."""
    try:
        with nvml.session():
            return tuple(_clocks(device) for device in nvml.devices())
    except (nvml.driver().NVMLError, UnicodeDecodeError):
        return ()


def _clocks(device: object) -> GpuClocks:
    driver = nvml.driver()
    milliwatts = _unless_refused(driver.nvmlDeviceGetPowerUsage, device)
    busy = _unless_refused(driver.nvmlDeviceGetUtilizationRates, device)
    # The second is what drivers before 535 call it.
    reasons = _unless_refused(driver.nvmlDeviceGetCurrentClocksEventReasons, device)
    if reasons is None:
        reasons = _unless_refused(driver.nvmlDeviceGetCurrentClocksThrottleReasons, device)
    return GpuClocks(
        name=nvml.name(device),
        sm_mhz=_unless_refused(driver.nvmlDeviceGetClockInfo, device, driver.NVML_CLOCK_SM),
        power_watts=None if milliwatts is None else milliwatts / 1000,
        utilization_percent=None if busy is None else busy.gpu,
        held_by=tuple(words for bit, words in _REASONS.items() if (reasons or 0) & bit),
    )


def _unless_refused(function: Callable[..., T], *args: object) -> T | None:
    try:
        return function(*args)
    except nvml.driver().NVMLError:
        return None
