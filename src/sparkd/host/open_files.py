"""What processes have open, by what their descriptors' links say."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct

from sparkd.host.files import Files
from sparkd.host.processes import GONE, Process


class OpenFile(Struct, frozen=True):
    pid: int
    descriptor: str
    target: str
    """A path, ` (deleted)` behind it once unlinked, or `socket:[inode]`."""


class OpenFiles(Struct, frozen=True):
    found: tuple[OpenFile, ...]
    unreadable_pids: tuple[int, ...]
    """Processes whose descriptors could not be looked at: anything may be open there."""


def of(files: Files, processes: Iterable[Process]) -> OpenFiles:
    """Every open descriptor of these processes. One that ended meanwhile has nothing open."""
    found: list[OpenFile] = []
    unreadable = []
    for process in processes:
        if process.kernel or process.dead:
            continue
        try:
            for descriptor, target in files.links(f"/proc/{process.pid}/fd"):
                found.append(OpenFile(process.pid, descriptor, target))
        except GONE:
            continue
        except OSError:
            unreadable.append(process.pid)
    return OpenFiles(tuple(found), tuple(unreadable))
