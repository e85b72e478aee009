"""Room on the disks, by the paths that need it; and which file systems nobody can write to.

A tree of files carries `/.sparkd/disks.json`: {PATH: {"total_bytes": ..., "free_bytes": ..., "free_inodes": ...}}.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct

from sparkd.host import mounts, os_stats
from sparkd.host.recorded import FOLDER

if TYPE_CHECKING:
    from sparkd.host import Host
    from sparkd.host.files import Files

WHOSE = ("1", "self")
"""Process whose mounts are looked at: in the sandbox of sparkd's own unit nearly all is read-only, for sparkd alone."""
READ_ONLY = frozenset(("ro", "emergency_ro", "shutdown"))
"""ext4 stays `rw` after an error since Linux 6.15, and says one of the others."""


class Room(Struct, frozen=True):
    """Of the file system that `path` is on, or will be once it is made."""

    path: str
    mount: str
    total_bytes: int
    free_bytes: int
    """For root: what the file system keeps back for it counts."""
    free_inodes: int | None
    """None where the file system makes them as it needs them."""
    read_only: bool


class _Counts(Struct, frozen=True):
    total_bytes: int
    free_bytes: int
    free_inodes: int | None


def rooms(host: Host, paths: Iterable[str]) -> tuple[Room, ...]:
    """In the paths' order; a tree of files leaves out what it has no record of. Raises OSError, ValueError."""
    read_only = _mounts(host.files)
    record = None if host.live else _record(host.files)
    found = []
    for path in paths:
        counts = _living(path) if record is None else _nearest(record, path)
        if counts is not None:
            mount = _nearest_key(read_only, _real(host.files, path)) or "/"
            one = Room(
                path, mount, counts.total_bytes, counts.free_bytes, counts.free_inodes, read_only.get(mount, False)
            )
            found.append(one)
    return tuple(found)


def _living(path: str) -> _Counts:
    while True:
        try:
            total, free = os_stats.disk_space(path)
            found = os.statvfs(path)  # for the inodes
        except (FileNotFoundError, NotADirectoryError):
            path = os.path.dirname(path)  # noqa: PTH120  # "/" is there
            continue
        inodes = found.f_ffree if found.f_files else None
        return _Counts(total, free, inodes)


def _record(files: Files) -> dict[str, _Counts]:
    try:
        said = json.loads(files.text(f"{FOLDER}/disks.json"))
    except FileNotFoundError:
        return {}
    if not isinstance(said, dict):
        raise ValueError(f"{FOLDER}/disks.json is no table")
    return {str(path): _counts(one) for path, one in said.items()}


def _counts(said: object) -> _Counts:
    match said:
        case {"total_bytes": int(total), "free_bytes": int(free), "free_inodes": int() | None as inodes}:
            return _Counts(total, free, inodes)
        case _:
            raise ValueError(f"{FOLDER}/disks.json: total_bytes, free_bytes and free_inodes are needed")


def _mounts(files: Files) -> dict[str, bool]:
    """By mount point, whether it is read-only."""
    for process in WHOSE:
        with suppress(FileNotFoundError, PermissionError):
            return {one.target: not READ_ONLY.isdisjoint(one.options) for one in mounts.table(files, process)}
    return {}


def _nearest(record: Mapping[str, _Counts], path: str) -> _Counts | None:
    key = _nearest_key(record, path)
    return None if key is None else record[key]


def _nearest_key(table: Mapping[str, object], path: str) -> str | None:
    """The path itself, or the folder above it that is in the table."""
    return next((one for one in (path, *map(str, Path(path).parents)) if one in table), None)


def _real(files: Files, path: str) -> str:
    """Where the path leads, symlinks followed."""
    if files.root == "/":
        return os.path.realpath(path)
    return files.real(path).removeprefix(files.root) or "/"
