"""Shared memory segments in /dev/shm, and files that processes have open or mapped."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable

from msgspec import Struct

from sparkd.host.files import Files, Kind
from sparkd.host.processes import GONE, Process, open_files

FOLDER = "/dev/shm"  # noqa: S108 - read, never written to
MAPS_LIMIT_BYTES = 256 << 20
"""A large engine has some ten thousand mappings, about 1 MiB of text."""

Identity = tuple[int, int]


class File(Struct, frozen=True):
    path: str
    name: str
    """The last part of its path, with a symlink resolved."""
    device: int
    inode: int
    size_bytes: int

    @property
    def identity(self) -> Identity:
        return self.device, self.inode


class Segment(File, frozen=True):
    allocated_bytes: int
    """Memory in use: segments are sparse."""
    uid: int
    links: int
    age_seconds: float
    """Since the last write to it as a file; negative where the clock was set back."""


class Uses(Struct, frozen=True):
    used: tuple[tuple[int, int, int], ...]
    unreadable_pids: tuple[int, ...]

    @property
    def identities(self) -> frozenset[Identity]:
        return frozenset((device, inode) for device, inode, _ in self.used)

    def pids(self, file: File) -> tuple[int, ...]:
        return tuple(pid for device, inode, pid in self.used if (device, inode) == file.identity)


def read_segments(files: Files, now_seconds: float) -> tuple[Segment, ...]:
    """Regular files directly in /dev/shm; none without that folder. `now_seconds` is wall clock."""
    try:
        names = files.names(FOLDER)
    except FileNotFoundError:
        return ()
    found = []
    for name in names:
        path = f"{FOLDER}/{name}"
        try:
            if files.kind(path) is not Kind.FILE:
                continue
            facts = files.stat(path)
        except GONE:
            continue
        age = now_seconds - facts.modified_at_seconds
        file = (path, name, facts.device, facts.inode, facts.size_bytes)
        found.append(Segment(*file, facts.allocated_bytes, facts.uid, facts.links, age))
    return tuple(found)


def find_uses(files: Files, processes: Iterable[Process], wanted: Iterable[File]) -> Uses:
    """The processes that have these files open or mapped, by device and inode.

    A process whose first thread is dead is unreadable.
    """
    by_identity = {file.identity: file for file in wanted}
    names = {file.name for file in by_identity.values()}
    used: set[tuple[int, int, int]] = set()
    unreadable: set[int] = set()
    living = [process for process in processes if not process.kernel and not process.dead]
    for process in living:
        if process.state == "Z":
            unreadable.add(process.pid)
            continue
        try:
            maps = files.bytes(f"/proc/{process.pid}/maps", MAPS_LIMIT_BYTES)
        except GONE:
            continue
        except OSError:
            unreadable.add(process.pid)
            continue
        used |= {(*identity, process.pid) for identity in _mapped(maps, frozenset(by_identity))}
    opened = open_files(files, living)
    for file in opened.found:
        # Only a file with a wanted name: stat of any other could hang on a dead file server.
        if file.target.removesuffix(" (deleted)").rpartition("/")[2] in names:
            try:
                facts = files.stat(f"/proc/{file.pid}/fd/{file.descriptor}")
            except GONE:
                continue
            except OSError:
                unreadable.add(file.pid)
                continue
            if (facts.device, facts.inode) in by_identity:
                used.add((facts.device, facts.inode, file.pid))
    return Uses(tuple(sorted(used)), tuple(sorted(unreadable | set(opened.unreadable_pids))))


def _mapped(maps: bytes, wanted: frozenset[Identity]) -> set[Identity]:
    found: set[Identity] = set()
    for device in {device for device, _ in wanted}:
        token = f" {os.major(device):02x}:{os.minor(device):02x} ".encode()
        if token in maps:
            found |= {(device, int(inode)) for inode in re.findall(re.escape(token) + rb"(\d+)", maps)} & wanted
    return found
