"""NVML, asked through ctypes with a deadline: a hung driver hangs whoever calls it.

Eleven functions whose ABI NVIDIA keeps stable are all that is needed of it.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable

from sparkd.host.gpu import NO_GPU, GpuFacts, GpuProcess, Trouble, hung
from sparkd.host.harmless import harmless

LIBRARY = "libnvidia-ml.so.1"
DEADLINE_SECONDS = 10.0
"""Without persistence mode the first question initialises the GPU, which takes one to two seconds."""

_NOT_SUPPORTED = 3
_INSUFFICIENT_SIZE = 7
_FUNCTION_NOT_FOUND = 13
_NO_VALUE = 2**64 - 1
_WORDS = {
    4: "no permission",
    9: "the driver is not loaded",
    13: "the library has no such function",
    15: "the GPU has fallen off the bus",
    16: "the GPU must be reset",
    18: "library and driver differ in version, as after an upgrade without a reboot",
}
"""Of nvmlReturn_t, those that a person can do something about."""
_TROUBLES = {
    4: Trouble.FORBIDDEN,
    9: Trouble.NOT_LOADED,
    15: Trouble.LOST,
    16: Trouble.RESET,
    18: Trouble.MISMATCH,
}

_left_behind: list[threading.Thread] = []
"""The asker that a hung driver keeps. No other is sent after it: each would be kept too."""


class _Memory(ctypes.Structure):
    _fields_ = (("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong))


class _ProcessInfo(ctypes.Structure):
    """nvmlProcessInfo_v2_t, which the _v3 functions fill."""

    _fields_ = (
        ("pid", ctypes.c_uint),
        ("used", ctypes.c_ulonglong),
        ("gpu_instance", ctypes.c_uint),
        ("compute_instance", ctypes.c_uint),
    )


class _NvmlError(Exception):
    def __init__(self, function: str, code: int) -> None:
        super().__init__(f"{_WORDS.get(code, 'it failed')} ({function} answered {code})")
        self.code = code


def read(deadline_seconds: float = DEADLINE_SECONDS) -> GpuFacts:
    """What the driver says within the deadline. No library: no GPU. Never raises for a sick driver: see `error`."""
    return within(deadline_seconds, ask)


def within(deadline_seconds: float, ask: Callable[[], GpuFacts]) -> GpuFacts:
    """The answer, or that there was none in time. Said at once while the driver keeps an earlier asker."""
    if any(one.is_alive() for one in _left_behind):
        return hung(deadline_seconds)
    _left_behind.clear()
    answers: list[GpuFacts] = []
    # A thread, since a call into a hung driver can be neither ended nor timed out; a daemon, so it can be left behind.
    asker = threading.Thread(target=lambda: answers.append(ask()), name="nvml", daemon=True)
    asker.start()
    asker.join(deadline_seconds)
    if answers:
        return answers[0]
    _left_behind.append(asker)
    return hung(deadline_seconds)


def ask(library_name: str = LIBRARY) -> GpuFacts:
    """What the driver says, however long it takes."""
    try:
        library = ctypes.CDLL(library_name)
    except OSError:
        return NO_GPU
    try:
        _call(library, "nvmlInit_v2")
        try:
            return _facts(library)
        finally:
            _call(library, "nvmlShutdown")
    except _NvmlError as error:
        return GpuFacts((), None, None, str(error), trouble=_TROUBLES.get(error.code, Trouble.OTHER))


def _facts(library: ctypes.CDLL) -> GpuFacts:
    count = ctypes.c_uint()
    _call(library, "nvmlDeviceGetCount_v2", ctypes.byref(count))
    names: list[str] = []
    totals: list[int | None] = []
    used: dict[int, int | None] = {}
    for index in range(count.value):
        device = ctypes.c_void_p()
        _call(library, "nvmlDeviceGetHandleByIndex_v2", ctypes.c_uint(index), ctypes.byref(device))
        names.append(_name(library, device))
        totals.append(_total_bytes(library, device))
        for function in ("nvmlDeviceGetComputeRunningProcesses_v3", "nvmlDeviceGetGraphicsRunningProcesses_v3"):
            for info in _processes(library, function, device):
                known = None if info.used == _NO_VALUE else int(info.used)
                before = used.get(info.pid, 0)
                used[info.pid] = None if known is None or before is None else before + known
    known_totals = [total for total in totals if total is not None]
    total = sum(known_totals) if totals and len(known_totals) == len(totals) else None
    processes = tuple(GpuProcess(pid, size) for pid, size in sorted(used.items()))
    return GpuFacts(tuple(names), total, processes, driver=_driver(library))


def _driver(library: ctypes.CDLL) -> str:
    buffer = ctypes.create_string_buffer(80)
    _call(library, "nvmlSystemGetDriverVersion", buffer, ctypes.c_uint(len(buffer)))
    return harmless(buffer.value.decode("utf-8", "backslashreplace"))


def _name(library: ctypes.CDLL, device: ctypes.c_void_p) -> str:
    buffer = ctypes.create_string_buffer(96)
    _call(library, "nvmlDeviceGetName", device, buffer, ctypes.c_uint(len(buffer)))
    return harmless(buffer.value.decode("utf-8", "backslashreplace"))


def _total_bytes(library: ctypes.CDLL, device: ctypes.c_void_p) -> int | None:
    memory = _Memory()
    try:
        _call(library, "nvmlDeviceGetMemoryInfo", device, ctypes.byref(memory))
    except _NvmlError as error:
        if error.code == _NOT_SUPPORTED:  # GB10: the memory is the machine's
            return None
        raise
    return int(memory.total)


def _processes(library: ctypes.CDLL, function: str, device: ctypes.c_void_p) -> list[_ProcessInfo]:
    room = 64
    while True:
        count = ctypes.c_uint(room)
        infos = (_ProcessInfo * room)()
        try:
            _call(library, function, device, ctypes.byref(count), infos)
        except _NvmlError as error:
            if error.code == _NOT_SUPPORTED:  # some devices have no graphics at all
                return []
            if error.code == _INSUFFICIENT_SIZE and room < 65536:
                room = max(room, count.value) * 2
                continue
            raise
        return list(infos[: count.value])


def _call(library: ctypes.CDLL, function: str, *args: object) -> None:
    try:
        code = getattr(library, function)(*args)
    except AttributeError:
        raise _NvmlError(function, _FUNCTION_NOT_FOUND) from None
    if code != 0:
        raise _NvmlError(function, code)
