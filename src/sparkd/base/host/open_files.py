"""The files that processes have open or mapped. Each of the two is read of all processes within one deadline."""

import time
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

from msgspec import Struct

from sparkd.base.host.files import Files
from sparkd.base.host.processes import GONE, Process, read_process

T = TypeVar("T")

SCAN_SECONDS = 10.0
"""Limit for open files, or mappings, of all processes: 0.1 s for a thousand. Each user can make them take hours."""
MAPS_LIMIT_BYTES = 16 << 20
"""A large engine has some ten thousand mappings, about 1 MiB of text; 65,530 of any user's may have 500 MiB."""


class OpenFile(Struct, frozen=True):
    pid: int
    path: str
    """The descriptor, in /proc."""
    target: str
    """A path, ` (deleted)` behind it once unlinked, or `socket:[inode]`."""


class OpenFiles(Struct, frozen=True):
    found: tuple[OpenFile, ...]
    unreadable_pids: tuple[int, ...]
    """Processes whose descriptors are unreadable: anything may be open there."""


def open_files(files: Files, processes: Iterable[Process], wanted: Callable[[str], object]) -> OpenFiles:
    """Open descriptors of these processes whose target is `wanted`, without processes that ended meanwhile.

    Processes that are not reached within SCAN_SECONDS count as unreadable.
    """
    descriptors: list[OpenFile] = []

    def read(process: Process, folder: str) -> bool:
        links = files.links(f"{folder}/fd")
        descriptors.extend(OpenFile(process.pid, f"{folder}/fd/{name}", link) for name, link in links if wanted(link))
        return True

    unreadable = tuple(pid for pid, is_read in _read_each(files, processes, read) if not is_read)
    return OpenFiles(tuple(descriptors), unreadable)


def read_mappings(files: Files, processes: Iterable[Process]) -> Iterator[tuple[int, bytes | None]]:
    """Pid and text of /proc/PID/maps of these processes, without those that ended meanwhile; None where unreadable.

    Processes that are not reached within SCAN_SECONDS count as unreadable.
    """
    return _read_each(files, processes, lambda _, folder: files.bytes(f"{folder}/maps", MAPS_LIMIT_BYTES))


def _read_each(
    files: Files, processes: Iterable[Process], read: Callable[[Process, str], T]
) -> Iterator[tuple[int, T | None]]:
    """Pid and what `read` returns of a process and its folder, as `_living_folder`; None where it is unreadable."""
    deadline = time.monotonic() + SCAN_SECONDS
    for process in processes:
        if process.kernel or process.dead:
            continue
        try:
            if time.monotonic() > deadline:
                raise TimeoutError
            value = read(process, _living_folder(files, process))
        except GONE:
            continue
        except OSError:
            yield process.pid, None
        else:
            yield process.pid, value


def _living_folder(files: Files, process: Process) -> str:
    """Its folder in /proc, or that of a living thread where the first thread has ended: its folder then shows nothing.

    Raises one of GONE, OSError.
    """
    folder = f"/proc/{process.pid}"
    if process.state not in "ZX":
        return folder
    for tid in files.names(f"{folder}/task"):
        if (thread := read_process(files, f"{process.pid}/task/{tid}")) and thread.state not in "ZX":
            return f"{folder}/task/{tid}"
    raise ProcessLookupError(f"pid {process.pid} has ended")
