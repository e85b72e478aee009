"""The GPU's driver, read by NVML with a deadline: a hung driver hangs its caller. `driver()` is pynvml's only home."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any, TypeVar

from sparkd.host.gpu import NO_GPU, GpuFacts, GpuProcess, Trouble, hung
from sparkd.lib.text import sanitize

T = TypeVar("T")

DEADLINE_SECONDS = 10.0
"""Without persistence mode the first call initialises the GPU, which takes one to two seconds."""
PROCESS_TRIES = 3
"""A list of processes can outgrow the room that was made for it."""

_KNOWN = {
    4: (Trouble.FORBIDDEN, "no permission"),
    9: (Trouble.NOT_LOADED, "the driver is not loaded"),
    13: (Trouble.OTHER, "the library has no such function"),
    15: (Trouble.LOST, "the GPU has fallen off the bus"),
    16: (Trouble.RESET, "the GPU must be reset"),
    18: (Trouble.MISMATCH, "library and driver differ in version, as after an upgrade without a reboot"),
}
"""Of nvmlReturn_t, those that a person can do something about."""

_left_behind: list[threading.Thread] = []
"""The thread that a hung driver keeps. No other is started after it: each would be kept too."""


def read(deadline_seconds: float = DEADLINE_SECONDS) -> GpuFacts:
    """What the driver reports within the deadline. No library: no GPU. Never raises for a sick driver: see `error`."""
    return within(deadline_seconds, query)


def within(deadline_seconds: float, ask: Callable[[], GpuFacts]) -> GpuFacts:
    """The answer, or that there was none in time; at once while the driver keeps an earlier thread."""
    return answer_within(deadline_seconds, ask) or hung(deadline_seconds)


def answer_within(deadline_seconds: float, ask: Callable[[], T]) -> T | None:
    """The answer; None where there was none in time, at once while the driver keeps an earlier thread."""
    if any(one.is_alive() for one in _left_behind):
        return None
    _left_behind.clear()
    answers: list[T] = []
    # A thread, since a call into a hung driver can be neither ended nor timed out; a daemon, so it can be left behind.
    asker = threading.Thread(target=lambda: answers.append(ask()), name="nvml", daemon=True)
    asker.start()
    asker.join(deadline_seconds)
    if answers:
        return answers[0]
    _left_behind.append(asker)
    return None


def query() -> GpuFacts:
    """What the driver reports, however long it takes."""
    nvml = driver()
    try:
        with session():
            return _facts()
    except nvml.NVMLError_LibraryNotFound:
        return NO_GPU
    except nvml.NVMLError as error:
        trouble, words = _KNOWN.get(error.value, (Trouble.OTHER, "it failed"))
        return GpuFacts((), None, None, f"{words} (NVML error {error.value})", trouble=trouble)
    except UnicodeDecodeError:
        return GpuFacts((), None, None, "its names are not text", trouble=Trouble.OTHER)


def driver() -> ModuleType:
    """NVML's own binding, 330 KB of code: imported by the thread that waits for the driver anyway."""
    import pynvml

    binding: ModuleType = pynvml
    return binding


@contextmanager
def session() -> Iterator[None]:
    """Raises the binding's NVMLError."""
    nvml = driver()
    nvml.nvmlInit()
    try:
        yield
    finally:
        nvml.nvmlShutdown()


def devices() -> Iterator[object]:
    """Handles, which nothing but the binding's own functions takes."""
    nvml = driver()
    for index in range(nvml.nvmlDeviceGetCount()):
        yield nvml.nvmlDeviceGetHandleByIndex(index)


def name(device: object) -> str:
    return sanitize(driver().nvmlDeviceGetName(device))


def _facts() -> GpuFacts:
    names: list[str] = []
    totals: list[int | None] = []
    used: dict[int, int | None] = {}
    for device in devices():
        names.append(name(device))
        totals.append(_total_bytes(device))
        for pid, size in _processes(device):
            before = used.get(pid, 0)
            used[pid] = None if size is None or before is None else before + size
    known_totals = [total for total in totals if total is not None]
    total = sum(known_totals) if totals and len(known_totals) == len(totals) else None
    processes = tuple(GpuProcess(pid, size) for pid, size in sorted(used.items()))
    return GpuFacts(tuple(names), total, processes, driver=sanitize(driver().nvmlSystemGetDriverVersion()))


def _total_bytes(device: object) -> int | None:
    nvml = driver()
    try:
        return int(nvml.nvmlDeviceGetMemoryInfo(device).total)
    except nvml.NVMLError_NotSupported:  # GB10: the memory is the machine's
        return None


def _processes(device: object) -> Iterator[tuple[int, int | None]]:
    nvml = driver()
    for function in (nvml.nvmlDeviceGetComputeRunningProcesses_v3, nvml.nvmlDeviceGetGraphicsRunningProcesses_v3):
        for process in _listed(function, device):
            yield process.pid, process.usedGpuMemory


def _listed(function: Callable[[object], list[Any]], device: object) -> list[Any]:
    nvml = driver()
    for _ in range(PROCESS_TRIES - 1):
        try:
            return function(device)
        except nvml.NVMLError_NotSupported:  # some devices have no graphics at all
            return []
        except nvml.NVMLError_InsufficientSize:
            continue
    return function(device)
