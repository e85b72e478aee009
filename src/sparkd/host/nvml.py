"""NVML, asked through ctypes with a deadline: a hung driver hangs whoever calls it.

The functions that are asked have an ABI that NVIDIA keeps stable.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from sparkd.host.gpu import NO_GPU, GpuFacts, GpuProcess, Trouble, hung
from sparkd.host.harmless import harmless

T = TypeVar("T")

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


class NvmlError(Exception):
    def __init__(self, function: str, code: int) -> None:
        super().__init__(f"{_WORDS.get(code, 'it failed')} ({function} answered {code})")
        self.code = code


def read(deadline_seconds: float = DEADLINE_SECONDS) -> GpuFacts:
    """What the driver says within the deadline. No library: no GPU. Never raises for a sick driver: see `error`."""
    return within(deadline_seconds, ask)


def within(deadline_seconds: float, ask: Callable[[], GpuFacts]) -> GpuFacts:
    """The answer, or that there was none in time. Said at once while the driver keeps an earlier asker."""
    return answer_within(deadline_seconds, ask) or hung(deadline_seconds)


def answer_within(deadline_seconds: float, ask: Callable[[], T]) -> T | None:
    """The answer; None where there was none in time, at once while the driver keeps an earlier asker."""
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


def ask(library_name: str = LIBRARY) -> GpuFacts:
    """What the driver says, however long it takes."""
    try:
        with session(library_name) as library:
            return _facts(library)
    except OSError:
        return NO_GPU
    except NvmlError as error:
        return GpuFacts((), None, None, str(error), trouble=_TROUBLES.get(error.code, Trouble.OTHER))


@contextmanager
def session(library_name: str) -> Iterator[ctypes.CDLL]:
    """The library, ready to be asked. Raises OSError where there is none, NvmlError where the driver is sick."""
    library = ctypes.CDLL(library_name)
    call(library, "nvmlInit_v2")
    try:
        yield library
    finally:
        call(library, "nvmlShutdown")


def devices(library: ctypes.CDLL) -> Iterator[ctypes.c_void_p]:
    count = ctypes.c_uint()
    call(library, "nvmlDeviceGetCount_v2", ctypes.byref(count))
    for index in range(count.value):
        device = ctypes.c_void_p()
        call(library, "nvmlDeviceGetHandleByIndex_v2", ctypes.c_uint(index), ctypes.byref(device))
        yield device


def _facts(library: ctypes.CDLL) -> GpuFacts:
    names: list[str] = []
    totals: list[int | None] = []
    used: dict[int, int | None] = {}
    for device in devices(library):
        names.append(name(library, device))
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
    call(library, "nvmlSystemGetDriverVersion", buffer, ctypes.c_uint(len(buffer)))
    return harmless(buffer.value.decode("utf-8", "backslashreplace"))


def name(library: ctypes.CDLL, device: ctypes.c_void_p) -> str:
    buffer = ctypes.create_string_buffer(96)
    call(library, "nvmlDeviceGetName", device, buffer, ctypes.c_uint(len(buffer)))
    return harmless(buffer.value.decode("utf-8", "backslashreplace"))


def _total_bytes(library: ctypes.CDLL, device: ctypes.c_void_p) -> int | None:
    memory = _Memory()
    try:
        call(library, "nvmlDeviceGetMemoryInfo", device, ctypes.byref(memory))
    except NvmlError as error:
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
            call(library, function, device, ctypes.byref(count), infos)
        except NvmlError as error:
            if error.code == _NOT_SUPPORTED:  # some devices have no graphics at all
                return []
            if error.code == _INSUFFICIENT_SIZE and room < 65536:
                room = max(room, count.value) * 2
                continue
            raise
        return list(infos[: count.value])


def call(library: ctypes.CDLL, function: str, *args: object) -> None:
    try:
        code = getattr(library, function)(*args)
    except AttributeError:
        raise NvmlError(function, _FUNCTION_NOT_FOUND) from None
    if code != 0:
        raise NvmlError(function, code)
