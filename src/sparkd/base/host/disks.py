"""Mounts, and the space of the file systems that hold given paths."""

from __future__ import annotations

import os
import re
from collections.abc import Container, Iterable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import asdict

if TYPE_CHECKING:
    from sparkd.base.host import Host
    from sparkd.base.host.files import Files

READ_ONLY = frozenset(("ro", "emergency_ro", "shutdown"))
"""Since Linux 6.15 ext4 keeps `rw` after an error and adds one of the other two."""

_OCTAL = re.compile(r"\\([0-7]{3})")
_SIZE = re.compile(r"(\d+)([kmg]?)")
_UNITS = {"": 0, "k": 10, "m": 20, "g": 30}


class Mount(Struct, frozen=True):
    target: str
    kind: str
    options: tuple[str, ...]

    def tmpfs_size_bytes(self, memory_bytes: int) -> int:
        """The size, where it is a tmpfs: half of the memory by default; the option `size=0` means all of it."""
        for option in self.options:
            name, _, value = option.partition("=")
            if name == "size" and (match := _SIZE.fullmatch(value)):
                return (int(match[1]) << _UNITS[match[2]]) or memory_bytes
        return memory_bytes // 2


class Space(Struct, frozen=True):
    """Space of one file system, by statvfs(2). The record `disks` of a capture, or of a test's tree, has it by path."""

    total_bytes: int
    free_bytes: int
    """What root can use: blocks reserved for it count."""
    free_inodes: int | None
    """None where the file system allocates them as needed."""


class Room(Space, frozen=True):
    """Space of the file system that holds `path`, or will hold it."""

    path: str
    mount: str
    read_only: bool


def read_rooms(host: Host, paths: Iterable[str]) -> tuple[Room, ...]:
    """Space at each path, in order; in a tree of files only at those with a record. Raises OSError, ValueError."""
    is_read_only_by_target = _read_only_by_target(host.files)
    recorded = {} if host.live else host.files.recorded("disks", dict[str, Space]) or {}
    rooms = []
    for path in paths:
        space = read_space(path) if host.live else recorded.get(find_nearest(recorded, path))
        if space is not None:
            mount = find_nearest(is_read_only_by_target, _kernel_path(host, path)) or "/"
            read_only = is_read_only_by_target.get(mount, False)
            rooms.append(Room(**asdict(space), path=path, mount=mount, read_only=read_only))
    return tuple(rooms)


def _kernel_path(host: Host, path: str) -> str:
    """The path as the kernel's table of mounts has it: without links, and without the root of a tree of files."""
    real_path = host.files.real(path)
    return os.path.realpath(real_path) if host.live else real_path.removeprefix(host.files.root) or "/"


def read_mounts(files: Files, process: str) -> tuple[Mount, ...]:
    """Mounts as a process (`self`, `1`) sees them, in order: a later one hides earlier ones on the same target."""
    table = files.text(f"/proc/{process}/mounts", limit=16 << 20)  # a host with many containers has some thousand lines
    rows = (line.split(" ") for line in table.split("\n"))
    return tuple(Mount(unescape(row[1]), row[2], tuple(row[3].split(","))) for row in rows if len(row) > 3)


def find_mount(files: Files, target: str) -> Mount | None:
    """The visible mount at `target`, which is the last one. None also for a tree of files without a table."""
    try:
        return next((mount for mount in reversed(read_mounts(files, "self")) if mount.target == target), None)
    except FileNotFoundError:
        return None


def find_unmounted(files: Files, path: str) -> str:
    """The folder at `path`, or above it, that is empty although /etc/fstab mounts a disk there; empty without one."""
    with suppress(OSError):
        rows = (line.split() for line in files.text("/etc/fstab").split("\n") if not line.lstrip().startswith("#"))
        targets = {unescape(row[1]).rstrip("/") for row in rows if len(row) > 2} - _read_only_by_target(files).keys()
        folder = Path(files.resolved(path))
        parents = map(str, (*reversed(folder.parents), folder))  # below one that is missing there is nothing to look at
        return next((target for target in parents if target in targets and not files.names(target)), "")
    return ""


def unescape(path: str) -> str:
    """A path in a table of the kernel, which writes a blank as `\\040`."""
    return _OCTAL.sub(lambda match: chr(int(match[1], 8)), path)


def read_space(path: str) -> Space:
    """Space at an absolute path, or at the nearest folder above it that exists."""
    from sparkd.base.host import os_stats

    while True:
        try:
            total, free = os_stats.disk_space(path)
            file_system = os.statvfs(path)  # for the inodes
        except (FileNotFoundError, NotADirectoryError):
            path = os.path.dirname(path)  # noqa: PTH120  # "/" is there
            continue
        return Space(total, free, file_system.f_ffree if file_system.f_files else None)


def _read_only_by_target(files: Files) -> dict[str, bool]:
    """Whether each mount is read-only, by its target; empty where the mounts are unreadable."""
    for process in ("1", "self"):  # in the sandbox of sparkd's own unit nearly everything is read-only
        with suppress(FileNotFoundError, PermissionError):
            return {mount.target: not READ_ONLY.isdisjoint(mount.options) for mount in read_mounts(files, process)}
    return {}


def find_nearest(table: Container[str], path: str) -> str:
    """The path itself, or the nearest folder above it, that is in the table; empty where none is."""
    return next((folder for folder in (path, *map(str, Path(path).parents)) if folder in table), "")
