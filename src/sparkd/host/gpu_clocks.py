"""What a GPU does right now, as NVML says: clock, power, utilization, and why its clocks are held down."""

from __future__ import annotations

import ctypes

from msgspec import Struct

from sparkd.host import nvml
from sparkd.host.nvml import NvmlError, call

_SM = 1
"""Of nvmlClockType_t."""
_REASONS = {
    0x4: "its power cap",
    0x8: "a hardware slowdown",
    0x20: "heat, by its driver",
    0x40: "heat, by its hardware",
    0x80: "an external power brake",
}
"""Of nvmlClocksEventReasons, those that slow a GPU down under load."""


class GpuClocks(Struct, frozen=True):
    """One GPU. None: the driver does not say."""

    name: str
    sm_mhz: int | None
    power_watts: float | None
    utilization_percent: int | None
    """Share of the last moment, up to a second, in which anything ran on it."""
    held_by: tuple[str, ...] = ()
    """Why the driver says that its clocks are down; it has no word for the firmware's own limits."""


class _Utilization(ctypes.Structure):
    _fields_ = (("gpu", ctypes.c_uint), ("memory", ctypes.c_uint))


def read(deadline_seconds: float = nvml.DEADLINE_SECONDS) -> tuple[GpuClocks, ...]:
    """One for each GPU; empty where there is none, or its driver does not answer."""
    return nvml.answer_within(deadline_seconds, ask) or ()


def ask(library_name: str = nvml.LIBRARY) -> tuple[GpuClocks, ...]:
    """What the driver says, however long it takes."""
    try:
        with nvml.session(library_name) as library:
            return tuple(_clocks(library, device) for device in nvml.devices(library))
    except (OSError, NvmlError):
        return ()


def _clocks(library: ctypes.CDLL, device: ctypes.c_void_p) -> GpuClocks:
    utilization = _Utilization()
    milliwatts = _number(library, "nvmlDeviceGetPowerUsage", device)
    busy = _said(library, "nvmlDeviceGetUtilizationRates", device, ctypes.byref(utilization))
    return GpuClocks(
        name=nvml.name(library, device),
        sm_mhz=_number(library, "nvmlDeviceGetClockInfo", device, ctypes.c_int(_SM)),
        power_watts=None if milliwatts is None else milliwatts / 1000,
        utilization_percent=int(utilization.gpu) if busy else None,
        held_by=_held_by(library, device),
    )


def _held_by(library: ctypes.CDLL, device: ctypes.c_void_p) -> tuple[str, ...]:
    bits = ctypes.c_ulonglong()
    # The second is what drivers before 535 call it.
    for function in ("nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons"):
        if _said(library, function, device, ctypes.byref(bits)):
            return tuple(words for bit, words in _REASONS.items() if bits.value & bit)
    return ()


def _number(library: ctypes.CDLL, function: str, device: ctypes.c_void_p, *args: object) -> int | None:
    value = ctypes.c_uint()
    return int(value.value) if _said(library, function, device, *args, ctypes.byref(value)) else None


def _said(library: ctypes.CDLL, function: str, *args: object) -> bool:
    try:
        call(library, function, *args)
    except NvmlError:
        return False
    return True
