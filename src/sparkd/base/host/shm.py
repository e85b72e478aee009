"""Shared memory segments in /dev/shm, and files that processes have open or mapped."""

import os
import re
from collections.abc import Iterable
from typing import NamedTuple

from msgspec import Struct

from sparkd.base.host.files import Files, Kind
from sparkd.base.host.open_files import open_files, read_mappings
from sparkd.base.host.processes import GONE, Process, overgrown

FOLDER = "/dev/shm"  # noqa: S108 - read, never written to
MOST_NAMES, MOST_SEGMENTS, SAMPLES = 500_000, 20_000, 100
"""Most names in /dev/shm, and most wanted ones: an engine makes some dozen. Past that, samples show whose they are."""
ANY = re.compile("", re.DOTALL)

Identity = tuple[int, int]


class File(Struct, frozen=True):
    path: str
    """The path with symlinks resolved."""
    device: int
    inode: int
    size_bytes: int

    @property
    def name(self) -> str:
        """The last part of its path."""
        return self.path.rpartition("/")[2]

    @property
    def identity(self) -> Identity:
        return self.device, self.inode


class Segment(File, frozen=True):
    allocated_bytes: int
    """Memory in use: segments are sparse."""
    uid: int
    links: int
    age_seconds: float
    """Time since the last write to it as a file; negative where the clock was set back."""


class Use(NamedTuple):
    identity: Identity
    pid: int


class Uses(Struct, frozen=True):
    used: tuple[Use, ...]
    unreadable_pids: tuple[int, ...]

    @property
    def identities(self) -> frozenset[Identity]:
        return frozenset(use.identity for use in self.used)

    def pids(self, file: File) -> tuple[int, ...]:
        return tuple(use.pid for use in self.used if use.identity == file.identity)


def read_segments(files: Files, now_seconds: float, named: re.Pattern[str]) -> tuple[Segment, ...]:
    """Regular files directly in /dev/shm whose whole name matches `named`; none without that folder.

    `now_seconds` is wall clock. Raises OvergrownError.
    """
    names: list[str] = []
    try:
        with os.scandir(files.real(FOLDER)) as children:
            for count, child in enumerate(children):
                if named is ANY or named.fullmatch(child.name):
                    names.append(child.name)
                if count >= MOST_NAMES or len(names) > MOST_SEGMENTS:
                    samples = (read_segment(files, name, now_seconds) for name in (*names[-SAMPLES:], child.name))
                    what = f"more files in {FOLDER} than are read"
                    raise overgrown(files, what, [segment.uid for segment in filter(None, samples)])
    except FileNotFoundError:
        return ()
    segments = (read_segment(files, name, now_seconds) for name in sorted(names))
    return tuple(filter(None, segments))


def read_segment(files: Files, name: str, now_seconds: float) -> Segment | None:
    """A segment by its name; None where there is no regular file of that name."""
    path = f"{FOLDER}/{name}"
    try:
        if files.lstat(path).kind is not Kind.FILE:
            return None
        facts = files.stat(path)
    except GONE:
        return None
    age_seconds = round(now_seconds - facts.modified_at_seconds, 1)
    file = (path, facts.device, facts.inode, facts.size_bytes)
    return Segment(*file, facts.allocated_bytes, facts.uid, facts.links, age_seconds)


def find_uses(files: Files, processes: Iterable[Process], wanted: Iterable[File]) -> Uses:
    """The processes that have these files open or mapped, by device and inode.

    Processes that are not reached within SCAN_SECONDS count as unreadable.
    """
    by_identity = {file.identity: file for file in wanted}
    names = {file.name for file in by_identity.values()}
    uses: set[Use] = set()
    unreadable: set[int] = set()
    users = tuple(processes)
    for pid, maps in read_mappings(files, users):
        if maps is None:
            unreadable.add(pid)
        else:
            uses |= {Use(identity, pid) for identity in _find_mapped(maps, frozenset(by_identity))}
    # Only a file with a wanted name: stat of any other could hang on a dead file server.
    opened = open_files(files, users, lambda target: target.removesuffix(" (deleted)").rpartition("/")[2] in names)
    for file in opened.found:
        try:
            facts = files.stat(file.path)
        except GONE:
            continue
        except OSError:
            unreadable.add(file.pid)
            continue
        if (identity := (facts.device, facts.inode)) in by_identity:
            uses.add(Use(identity, file.pid))
    return Uses(tuple(sorted(uses)), tuple(sorted(unreadable | set(opened.unreadable_pids))))


def _find_mapped(maps: bytes, wanted: frozenset[Identity]) -> set[Identity]:
    """The wanted files that are mapped, by the text of /proc/PID/maps."""
    mapped: set[Identity] = set()
    for device in {device for device, _ in wanted}:
        token = f" {os.major(device):02x}:{os.minor(device):02x} ".encode()
        if token in maps:  # in a file's name too, which any user may give
            inodes = re.findall(rb"^\S+ \S+ \S+" + re.escape(token) + rb"(\d+)", maps, re.MULTILINE)
            mapped |= {(device, int(inode)) for inode in inodes} & wanted
    return mapped
