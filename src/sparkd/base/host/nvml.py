"""Queries of the GPU's driver by NVML, without a deadline: `gpu` sets one. No other module imports pynvml."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from operator import add
from pathlib import Path
from typing import TypeVar

import pynvml

from sparkd.base.host.gpu import NO_GPU, GpuClocks, GpuFacts, GpuProcess, Trouble
from sparkd.base.host.kernel import MODULE_VERSION
from sparkd.base.lib.text import sanitize

T = TypeVar("T")

_KNOWN = {
    4: (Trouble.FORBIDDEN, "no permission"),
    9: (Trouble.NOT_LOADED, "the driver is not loaded"),
    13: (Trouble.OTHER, "the library has no such function"),
    15: (Trouble.LOST, "the GPU has fallen off the bus"),
    16: (Trouble.RESET, "the GPU must be reset"),
    18: (Trouble.MISMATCH, "library and driver differ in version, as after an upgrade without a reboot"),
}
"""Values of nvmlReturn_t that a person can act on."""
_REASONS = {
    0x4: "its power cap",
    0x8: "a hardware slowdown",
    0x20: "heat, by its driver",
    0x40: "heat, by its hardware",
    0x80: "an external power brake",
}
"""Bits of nvmlClocksEventReasons that slow a GPU down under load."""


def query(module_version: str = MODULE_VERSION) -> GpuFacts:
    """The driver's facts; NO_GPU without its library and its kernel module. A failure is an `error`, never raised."""
    try:
        with _open_devices() as devices:
            return _read_facts(devices)
    except pynvml.NVMLError_LibraryNotFound:
        if Path(module_version).exists():
            return GpuFacts((), error="its library libnvidia-ml.so.1 is not found", trouble=Trouble.NO_LIBRARY)
        return NO_GPU
    except pynvml.NVMLError as error:
        trouble, reason = _KNOWN.get(error.value, (Trouble.OTHER, "it failed"))
        return GpuFacts((), error=f"{reason} (NVML error {error.value})", trouble=trouble)
    except UnicodeDecodeError:
        return GpuFacts((), error="its names are not text", trouble=Trouble.OTHER)


def query_clocks() -> tuple[GpuClocks, ...]:
    """The clocks of each GPU; empty where the driver fails."""
    try:
        with _open_devices() as devices:
            return tuple(_read_clocks(device) for device in devices)
    except (pynvml.NVMLError, UnicodeDecodeError):
        return ()


@contextmanager
def _open_devices() -> Iterator[list[object]]:
    pynvml.nvmlInit()
    try:
        yield [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(pynvml.nvmlDeviceGetCount())]
    finally:
        pynvml.nvmlShutdown()


def _read_facts(devices: list[object]) -> GpuFacts:
    size_by_pid: dict[int, int | None] = {}
    for device in devices:
        for pid, size in _read_sizes(device).items():
            size_by_pid[pid] = _combine(add, size_by_pid.get(pid, 0), size)
    totals: list[int] = []
    for device in devices:
        with suppress(pynvml.NVMLError_NotSupported):  # GB10: the memory is the machine's
            totals.append(int(pynvml.nvmlDeviceGetMemoryInfo(device).total))
    return GpuFacts(
        tuple(sanitize(pynvml.nvmlDeviceGetName(device)) for device in devices),
        min(totals) if devices and len(totals) == len(devices) else None,
        tuple(GpuProcess(pid, size) for pid, size in sorted(size_by_pid.items())),
        driver=sanitize(pynvml.nvmlSystemGetDriverVersion()),
    )


def _read_sizes(device: object) -> dict[int, int | None]:
    """Memory of each process on a device, by pid. One that computes and draws is in both lists, each with all of it."""
    sizes: dict[int, int | None] = {}
    for function in (pynvml.nvmlDeviceGetComputeRunningProcesses_v3, pynvml.nvmlDeviceGetGraphicsRunningProcesses_v3):
        with suppress(pynvml.NVMLError_NotSupported):  # some devices have no graphics at all
            for process in function(device):  # all: pynvml leaves room for twice as many as there were, and five more
                sizes[process.pid] = _combine(max, sizes.get(process.pid, 0), process.usedGpuMemory)
    return sizes


def _combine(function: Callable[[int, int], int], first: int | None, second: int | None) -> int | None:
    """None where one of the sizes is unknown."""
    return None if first is None or second is None else function(first, second)


def _read_clocks(device: object) -> GpuClocks:
    milliwatts = _call_unless_refused(pynvml.nvmlDeviceGetPowerUsage, device)
    utilization = _call_unless_refused(pynvml.nvmlDeviceGetUtilizationRates, device)
    reasons = _call_unless_refused(pynvml.nvmlDeviceGetCurrentClocksEventReasons, device)
    return GpuClocks(
        name=sanitize(pynvml.nvmlDeviceGetName(device)),
        sm_mhz=_call_unless_refused(pynvml.nvmlDeviceGetClockInfo, device, pynvml.NVML_CLOCK_SM),
        power_watts=None if milliwatts is None else milliwatts / 1000,
        utilization_percent=None if utilization is None else utilization.gpu,
        held_by=tuple(words for bit, words in _REASONS.items() if (reasons or 0) & bit),
        temperature_celsius=_call_unless_refused(pynvml.nvmlDeviceGetTemperature, device, pynvml.NVML_TEMPERATURE_GPU),
    )


def _call_unless_refused(function: Callable[..., T], *args: object) -> T | None:
    with suppress(pynvml.NVMLError):
        return function(*args)
    return None
