"""The GPU: queries of its driver with a deadline, and the processes that have its device files open or mapped.

A call into a hung driver can be neither ended nor timed out: a thread of its own makes it, and imports `nvml`,
which may fail as a query does.
"""

import re
import threading
from collections.abc import Callable, Iterable
from enum import Enum
from types import ModuleType
from typing import TypeVar

from msgspec import Struct
from msgspec.structs import replace

from sparkd.base.host.files import Files
from sparkd.base.host.open_files import OpenFiles, open_files, read_mappings
from sparkd.base.host.processes import Process
from sparkd.base.lib import start_thread
from sparkd.base.lib.text import sanitize

T = TypeVar("T")

DEADLINE_SECONDS = 10.0
"""Limit for one query. Without persistence mode the first one initialises the GPU, which takes one to two seconds."""
DRIVER_NAME = "the GPU's driver"
"""What a verdict awaits (`Verdict.awaits`) where the driver does not answer."""

_DEVICE = re.compile(r"/dev/nvidia(?:\d+|ctl|-uvm|-uvm-tools|-modeset|-caps/.*)\Z")
_MAPPED = re.compile(rb"^\S+ \S+ \S+ \S+ \d+ +/dev/nvidia", re.MULTILINE)
_hung: list[threading.Thread] = []
"""The thread that hangs in the driver, if any. No other is started meanwhile, since it would hang too."""


class Trouble(Enum):
    NONE = ""
    HUNG = "hung"
    LOST = "lost"
    RESET = "reset-required"
    MISMATCH = "version-mismatch"
    NOT_LOADED = "not-loaded"
    NO_LIBRARY = "no-library"
    FORBIDDEN = "forbidden"
    OTHER = "other"


class GpuProcess(Struct, frozen=True):
    pid: int
    used_bytes: int | None = None
    """None where the driver does not report it."""


class GpuFacts(Struct, frozen=True):
    names: tuple[str, ...]
    """One for each GPU; empty where there is none, or no driver."""
    total_bytes: int | None = None
    """Memory of the smallest GPU: a rank uses one. None where they have no own memory (GB10 shares the machine's)."""
    processes: tuple[GpuProcess, ...] | None = None
    """None where the driver could not be queried."""
    error: str = ""
    driver: str = ""
    """Its version, such as 580.142; empty where unknown."""
    trouble: Trouble = Trouble.NONE


class GpuClocks(Struct, frozen=True):
    """State of one GPU now. None: the driver does not report it."""

    name: str
    sm_mhz: int | None
    power_watts: float | None
    utilization_percent: int | None
    """Share of the last moment, up to a second."""
    held_by: tuple[str, ...] = ()
    """The driver's reasons for reduced clocks; it does not report the firmware's own limits."""
    temperature_celsius: int | None = None


NO_GPU = GpuFacts((), processes=())
HUNG = GpuFacts((), error=f"it did not answer in {DEADLINE_SECONDS:g} s", trouble=Trouble.HUNG)
FAILED = GpuFacts((), error="sparkd's own query failed, as the journal shows", trouble=Trouble.OTHER)


def read_driver() -> GpuFacts:
    """The driver's facts; NO_GPU without the driver's library. A failure of the driver is an `error`, never raised."""
    return answer_within(DEADLINE_SECONDS, lambda: _import_nvml().query()) or (HUNG if _hung else FAILED)


def read_clocks() -> tuple[GpuClocks, ...]:
    """The clocks of each GPU; empty where there is none, or its driver does not answer."""
    return answer_within(DEADLINE_SECONDS, lambda: _import_nvml().query_clocks()) or ()


def _import_nvml() -> ModuleType:
    from sparkd.base.host import nvml

    return nvml


def answer_within(deadline_seconds: float, query: Callable[[], T]) -> T | None:
    """The answer; None where there was none in time or `query` raised, and at once while an earlier thread hangs.

    Raises BlockingIOError where no thread can be started.
    """
    if any(thread.is_alive() for thread in _hung):
        return None
    _hung.clear()
    answers: list[T] = []
    thread = threading.Thread(target=lambda: answers.append(query()), name="nvml", daemon=True)
    start_thread(thread)
    thread.join(deadline_seconds)
    if not answers and thread.is_alive():
        _hung.append(thread)
    return answers[0] if answers else None


def read_fixture(files: Files) -> GpuFacts:
    """The recorded answer of the driver, or `{"hangs": true}`; NO_GPU without one. Raises OSError, ValueError."""
    if files.recorded("nvml", object) == {"hangs": True}:
        return HUNG
    if facts := files.recorded("nvml", GpuFacts):
        names = tuple(sanitize(name) for name in facts.names)
        return replace(facts, names=names, error=sanitize(facts.error), driver=sanitize(facts.driver))
    return NO_GPU


def gpu_present(files: Files) -> bool:
    return any(re.fullmatch(r"nvidia\d+", name) for name in files.names("/dev"))


def gpu_users(files: Files, processes: Iterable[Process]) -> OpenFiles:
    """Every open descriptor of a GPU device, and the processes whose descriptors are unreadable."""
    return open_files(files, processes, _DEVICE.match)


def gpu_mappers(files: Files, processes: Iterable[Process]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Pids of those that have a GPU device mapped, and of those whose mappings are unreadable.

    On an H200, 8 GiB of managed memory stayed with a process that had closed all its descriptors: the driver no longer
    listed it, and only its mapping of /dev/nvidia-uvm was left.
    """
    mappers, unreadable = [], []
    for pid, maps in read_mappings(files, processes):
        if maps is None:
            unreadable.append(pid)
        elif _MAPPED.search(maps):
            mappers.append(pid)
    return tuple(mappers), tuple(unreadable)
