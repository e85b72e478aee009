"""Reads below one root folder, which no symlink leads out of.

A tree of files holds under `FIXTURE` what a machine has beside its files: `docker/PATH.json` is the body of docker's
answer to GET PATH without its query, PATH.500.json one with which docker failed. The files that `Files.recorded` reads:
`nvml.json` is the answer of the GPU's driver; `path_mtu.json` has whether large datagrams arrive, or null, by address;
`disks.json` the space by path: {"total_bytes": ..., "free_bytes": ..., "free_inodes": ...}.
"""

# ruff: noqa: PTH115, PTH116
# Strings and os, not pathlib: a scan reads tens of thousands of paths, each several times slower through pathlib.

import errno
import os
import re
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from enum import Enum
from itertools import islice
from typing import TypeVar

from msgspec import Struct
from msgspec.json import decode

from sparkd.base.lib import prepared

FIXTURE = "/.sparkd"
LIMIT_BYTES = 4 << 20
"""Largest file that is read whole, such as a unit or a table of the kernel; a caller may set another limit."""
MOST_NAMES = 100_000
"""Names in a folder that is listed whole."""

# O_NONBLOCK: a FIFO where a file is expected must not hang the agent.
_READ = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY
READABLE = (os.makedev(1, 3), os.makedev(1, 11))
"""Devices that are opened: /dev/null, to which masked units are links, and the kernel's log."""
_LEADS_OUT = re.compile(r"/(?:root|cwd|exe|fd|map_files|\.\.)(?:/|$)")
"""Parts of a path by which a file below /proc may be any other one, such as /proc/self/root/dev/watchdog."""

T = TypeVar("T")


class Kind(Enum):
    FILE = "file"
    FOLDER = "folder"
    DEVICE = "device"
    SOCKET = "socket"
    LINK = "symlink"
    OTHER = "something else"


_KINDS = {
    stat.S_IFREG: Kind.FILE,
    stat.S_IFDIR: Kind.FOLDER,
    stat.S_IFCHR: Kind.DEVICE,
    stat.S_IFBLK: Kind.DEVICE,
    stat.S_IFLNK: Kind.LINK,
    stat.S_IFSOCK: Kind.SOCKET,
}


class FileFacts(Struct, frozen=True):
    kind: Kind
    permissions: int
    uid: int
    size_bytes: int
    allocated_bytes: int
    device: int
    inode: int
    links: int
    """Hard links, its own name included."""
    modified_at_seconds: float
    """Wall clock, seconds since 1970."""

    @property
    def executable(self) -> bool:
        return bool(self.permissions & 0o111)

    @property
    def writable_by_others(self) -> bool:
        return bool(self.permissions & 0o022)


class Opened(Struct, frozen=True):
    """Facts and content of one file, even if its name has been given to another meanwhile."""

    facts: FileFacts
    content: bytes


class Files(Struct, frozen=True):
    """Reads below `root`. Every method raises OSError as the kernel would."""

    root: str = "/"
    owner_uid: int = 0
    """The owner of the files that are root's on a machine; in a tree of files, the user who has made it."""

    @contextmanager
    def opened(self, path: str) -> Iterator[int]:
        fd = open_file(self.real(path))
        try:
            yield fd
        finally:
            os.close(fd)

    def head(self, path: str, limit: int) -> bytes:
        return _read(self.real(path), lambda fd: os.read(fd, limit))

    def itself(self, path: str, limit: int) -> Opened:
        """The file that `path` names. A symlink there is not followed: ELOOP."""
        return _read(
            self._resolve_parent(path),
            lambda fd: Opened(_make_facts(os.fstat(fd)), _read_whole(fd, path, limit)),
            os.O_NOFOLLOW,
        )

    def chunks(self, path: str) -> Iterator[bytes]:
        with self.opened(path) as fd:
            while chunk := os.read(fd, 1 << 20):
                yield chunk

    def bytes(self, path: str, limit: int = LIMIT_BYTES) -> bytes:
        """The content, whole. More than `limit` bytes is EFBIG: half a table is worse than none."""
        return _read(self.real(path), lambda fd: _read_whole(fd, path, limit))

    def text(self, path: str, limit: int = LIMIT_BYTES) -> str:
        """The content as text; bytes that are not UTF-8 become `\\xNN`."""
        return self.bytes(path, limit).decode("utf-8", "backslashreplace")

    def text_if_any(self, path: str, limit: int = LIMIT_BYTES) -> str | None:
        """The content, as `text` returns it; None where there is no such file."""
        with suppress(FileNotFoundError, NotADirectoryError):
            return self.text(path, limit)
        return None

    def recorded(self, name: str, kind: type[T]) -> T | None:
        """The record `FIXTURE`/NAME.json of a tree of files; None where it has none. Raises ValueError."""
        path = f"{FIXTURE}/{name}.json"
        try:
            text = self.text_if_any(path)
            return None if text is None else decode(text, type=prepared(kind))
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from None

    def value(self, path: str) -> str:
        """The line of a small file, such as a setting of the kernel, stripped."""
        return self.text(path, limit=4096).strip()

    def stat(self, path: str) -> FileFacts:
        return _make_facts(os.stat(self.real(path)))

    def exists(self, path: str) -> bool:
        """Whether the last symlink leads to anything. Raises PermissionError where that is unreadable."""
        try:
            os.stat(self.real(path))
        except (FileNotFoundError, NotADirectoryError):
            return False
        return True

    def names(self, path: str) -> tuple[str, ...]:
        """The names in a folder, sorted. Raises EFBIG for more than MOST_NAMES."""
        with os.scandir(self.real(path)) as children:
            names = [child.name for child in islice(children, MOST_NAMES + 1)]
        if len(names) > MOST_NAMES:
            raise OSError(errno.EFBIG, f"more than {MOST_NAMES} names", path)
        return tuple(sorted(names))

    def names_if_any(self, path: str) -> tuple[str, ...]:
        """The names in a folder, sorted; none where there is no such folder."""
        with suppress(FileNotFoundError, NotADirectoryError):
            return self.names(path)
        return ()

    def link(self, path: str) -> str:
        """The target of a symlink, unresolved: `socket:[123]` or a path."""
        return os.readlink(self._resolve_parent(path))

    def resolved(self, path: str) -> str:
        """The path without symlinks, as the machine sees it."""
        return follow(path, lambda here, _: self.link(here)) or "/"

    def lstat(self, path: str) -> FileFacts:
        """Facts of `path` itself: a symlink there is not followed."""
        return _make_facts(os.lstat(self._resolve_parent(path)))

    def links(self, path: str) -> Iterator[tuple[str, str]]:
        """Name and target of each symlink in a folder. One that is removed meanwhile is left out."""
        with os.scandir(self.real(path)) as children:
            for child in children:
                with suppress(FileNotFoundError):
                    yield child.name, os.readlink(child.path)

    def real(self, path: str) -> str:
        """The path to give to the kernel."""
        if self.root == "/":
            return path
        return self.root + follow(path, lambda here, _: os.readlink(self.root + here))

    def _resolve_parent(self, path: str) -> str:
        """The path to give to the kernel for `path` itself: only symlinks above it are followed."""
        parent, _, name = path.rpartition("/")
        return f"{self.real(parent or '/')}/{name}"


def open_file(path: str, flags: int = 0) -> int:
    """Open a file to read; returns its descriptor. `flags`: O_NOFOLLOW or none.

    Raises OSError, also for a device: a user's link may lead to one, and a watchdog, once opened, would begin to count.
    """
    if path.startswith(("/proc/", "/sys/")) and not _LEADS_OUT.search(path):  # no devices, and thousands are read
        return os.open(path, _READ | flags)
    path_fd = os.open(path, os.O_PATH | os.O_CLOEXEC | flags)
    try:
        status = os.fstat(path_fd)
        is_device = stat.S_ISBLK(status.st_mode) or stat.S_ISCHR(status.st_mode)
        if is_device and status.st_rdev not in READABLE:
            raise OSError(errno.EINVAL, "is a device", path)
        return os.open(f"/proc/self/fd/{path_fd}", _READ)
    except OSError as error:
        raise OSError(error.errno, error.strerror, path) from None
    finally:
        os.close(path_fd)


def _read(path: str, work: Callable[[int], T], flags: int = 0) -> T:
    """The result of `work` for the open file. `opened` takes longer, which counts for thousands of processes' files."""
    fd = open_file(path, flags)
    try:
        return work(fd)
    finally:
        os.close(fd)


def _read_whole(fd: int, path: str, limit: int) -> bytes:
    """The content of an open file. Raises EFBIG for more than `limit` bytes."""
    chunks = [os.read(fd, 65536)]
    size = len(chunks[0])
    while chunks[-1] and size <= limit:
        chunks.append(os.read(fd, 1 << 20))
        size += len(chunks[-1])
    if size > limit:
        raise OSError(errno.EFBIG, f"larger than {limit} bytes", path)
    return b"".join(chunks)


def follow(path: str, read_link: Callable[[str, list[str]], str]) -> str:
    """The path without symlinks and `..`; empty for the root. Raises OSError for too many links.

    `read_link(path, rest)` raises OSError where there is no symlink. `rest` are the parts behind it, last part first.
    """
    pending = path.split("/")[::-1]
    resolved: list[str] = []
    links = 0
    while pending:
        part = pending.pop()
        if part in ("", "."):
            continue
        if part == "..":
            del resolved[-1:]
            continue
        resolved.append(part)
        try:
            target = read_link("/" + "/".join(resolved), pending)
        except OSError:  # no symlink, or nothing there, which the caller's own call reports
            continue
        links += 1
        if links > 40:  # as in the kernel
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), "/" + "/".join(resolved))
        resolved = [] if target.startswith("/") else resolved[:-1]
        pending.extend(target.split("/")[::-1])
    return "".join(f"/{part}" for part in resolved)


def _make_facts(status: os.stat_result) -> FileFacts:
    return FileFacts(
        kind=_KINDS.get(stat.S_IFMT(status.st_mode), Kind.OTHER),
        permissions=stat.S_IMODE(status.st_mode),
        uid=status.st_uid,
        size_bytes=status.st_size,
        allocated_bytes=status.st_blocks * 512,
        device=status.st_dev,
        inode=status.st_ino,
        links=status.st_nlink,
        modified_at_seconds=status.st_mtime,
    )
