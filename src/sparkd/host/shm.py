"""Shared memory: what lies in /dev/shm, and which processes have it open or mapped."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from typing import Protocol

from msgspec import Struct

from sparkd.host import open_files
from sparkd.host.files import Files, Kind
from sparkd.host.processes import GONE, Process

FOLDER = "/dev/shm"  # noqa: S108 - looked at, never written to
MAPS_LIMIT_BYTES = 256 << 20
"""A big engine maps some ten thousand pieces, about 1 MiB of text."""


class File(Protocol):
    """Any file, as the kernel tells it apart, and the last part of its path."""

    @property
    def name(self) -> str: ...
    @property
    def device(self) -> int: ...
    @property
    def inode(self) -> int: ...


class Segment(Struct, frozen=True):
    path: str
    name: str
    device: int
    inode: int
    size_bytes: int
    allocated_bytes: int
    """Memory that it really takes: segments are sparse."""
    uid: int
    links: int
    age_seconds: float
    """Since it was last written to as a file; negative where the clock was set back."""


class Uses(Struct, frozen=True):
    """Who uses segments, and whose use could not be looked at."""

    used: tuple[tuple[int, int, int], ...]
    """(device, inode, pid)"""
    unreadable_pids: tuple[int, ...]

    def pids(self, segment: Segment) -> tuple[int, ...]:
        return tuple(pid for device, inode, pid in self.used if (device, inode) == (segment.device, segment.inode))


def device(files: Files) -> int:
    """Device number of the machine's own /dev/shm."""
    return files.stat(FOLDER).device


def segments(files: Files, now_seconds: float) -> tuple[Segment, ...]:
    """Regular files right below /dev/shm. `now_seconds` is wall clock."""
    found = []
    for name in files.names(FOLDER):
        path = f"{FOLDER}/{name}"
        try:
            if _is_link(files, path):
                continue
            facts = files.stat(path)
        except GONE:
            continue
        if facts.kind is Kind.FILE:
            age = now_seconds - facts.modified_at_seconds
            found.append(
                Segment(
                    path, name, facts.device, facts.inode, facts.size_bytes, facts.allocated_bytes, facts.uid,
                    facts.links, age,
                )
            )  # fmt: skip
    return tuple(found)


def uses(files: Files, processes: Iterable[Process], wanted: Iterable[File]) -> Uses:
    """Which processes have these files open or mapped, told by device and inode.

    A process that shares its memory with a dead first thread cannot be looked at, and counts as unreadable.
    """
    by_identity = {(file.device, file.inode): file for file in wanted}
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
    opened = open_files.of(files, living)
    names = {file.name for file in by_identity.values()}
    for file in opened.found:
        # Stat only what carries the name of a wanted file: a stat of any open file could hang on a dead file server.
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


def _mapped(maps: bytes, wanted: frozenset[tuple[int, int]]) -> set[tuple[int, int]]:
    found = set()
    for one in {device for device, _ in wanted}:
        token = f" {os.major(one):02x}:{os.minor(one):02x} ".encode()
        if token in maps:
            inodes = {int(inode) for inode in re.findall(re.escape(token) + rb"(\d+)", maps)}
            found |= {(one, inode) for inode in inodes} & wanted
    return found


def _is_link(files: Files, path: str) -> bool:
    try:
        files.link(path)
    except OSError:
        return False
    return True
