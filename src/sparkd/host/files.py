"""Reads below one root folder, which no symlink leads out of.

A tree of files holds under `FIXTURE` what a machine has beside its files: `docker/PATH.json` is the body of docker's
answer to GET PATH without its query, PATH.500.json one with which docker failed; `nvml.json` is the answer of the GPU's
driver; `path_mtu.json` and `resolver.json` hold the network's answers by address.
"""

# ruff: noqa: PTH115, PTH116, PTH208
# Strings and os, not pathlib: a scan reads tens of thousands of paths, each several times slower through pathlib.

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from enum import Enum

from msgspec import Struct

FIXTURE = "/.sparkd"
LIMIT_BYTES = 4 << 20
"""Of a file that is read whole, such as a unit or a table of the kernel; a caller may set another limit."""
MAX_LINKS = 40
"""Symlinks followed for one path, as in the kernel."""

# O_NONBLOCK: a FIFO where a file is expected must not hang the agent.
_READ = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY


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

    @contextmanager
    def opened(self, path: str) -> Iterator[int]:
        fd = os.open(self.real(path), _READ)
        try:
            yield fd
        finally:
            os.close(fd)

    def head(self, path: str, limit: int) -> bytes:
        fd = os.open(self.real(path), _READ)  # not by `opened`: this reads the arguments of thousands of processes
        try:
            return os.read(fd, limit)
        finally:
            os.close(fd)

    def itself(self, path: str, limit: int) -> Opened:
        """The file that `path` names. A symlink there is not followed: ELOOP."""
        fd = os.open(self._name(path), _READ | os.O_NOFOLLOW)
        try:
            return Opened(_facts(os.fstat(fd)), _whole(fd, path, limit))
        finally:
            os.close(fd)

    def chunks(self, path: str) -> Iterator[bytes]:
        with self.opened(path) as fd:
            while chunk := os.read(fd, 1 << 20):
                yield chunk

    def bytes(self, path: str, limit: int = LIMIT_BYTES) -> bytes:
        """The content, whole. More than `limit` bytes is EFBIG: half a table is worse than none."""
        fd = os.open(self.real(path), _READ)
        try:
            return _whole(fd, path, limit)
        finally:
            os.close(fd)

    def text(self, path: str, limit: int = LIMIT_BYTES) -> str:
        """As `bytes`; bytes that are not UTF-8 become `\\xNN`."""
        return self.bytes(path, limit).decode("utf-8", "backslashreplace")

    def value(self, path: str) -> str:
        """The line of a small file, such as a setting of the kernel, stripped."""
        return self.text(path, limit=4096).strip()

    def stat(self, path: str) -> FileFacts:
        return _facts(os.stat(self.real(path)))

    def exists(self, path: str) -> bool:
        """Whether the last symlink leads to anything. Raises PermissionError where that is unreadable."""
        try:
            os.stat(self.real(path))
        except (FileNotFoundError, NotADirectoryError):
            return False
        return True

    def names(self, path: str) -> tuple[str, ...]:
        return tuple(sorted(os.listdir(self.real(path))))

    def names_if_any(self, path: str) -> tuple[str, ...]:
        """The same; empty where there is no such folder."""
        try:
            return self.names(path)
        except (FileNotFoundError, NotADirectoryError):
            return ()

    def link(self, path: str) -> str:
        """The target of a symlink, unresolved: `socket:[123]` or a path."""
        return os.readlink(self._name(path))

    def kind(self, path: str) -> Kind:
        """Of `path` itself: a symlink is not followed."""
        return _kind(os.lstat(self._name(path)).st_mode)

    def links(self, path: str) -> Iterator[tuple[str, str]]:
        """Name and target of each symlink in a folder. One that is removed meanwhile is left out."""
        folder = self.real(path)
        for name in os.listdir(folder):
            try:
                yield name, os.readlink(f"{folder}/{name}")
            except FileNotFoundError:
                continue

    def real(self, path: str) -> str:
        """The path to give to the kernel."""
        return path if self.root == "/" else _below(self.root, path)

    def _name(self, path: str) -> str:
        """The same for `path` itself: a symlink there is not followed."""
        parent, _, name = path.rpartition("/")
        return f"{self.real(parent or '/')}/{name}"


def _whole(fd: int, path: str, limit: int) -> bytes:
    chunks = [os.read(fd, 65536)]
    size = len(chunks[0])
    while chunks[-1] and size <= limit:
        chunks.append(os.read(fd, 1 << 20))
        size += len(chunks[-1])
    if size > limit:
        raise OSError(errno.EFBIG, f"larger than {limit} bytes", path)
    return b"".join(chunks)


def _below(root: str, path: str) -> str:
    todo = path.split("/")[::-1]
    done: list[str] = []
    links = 0
    while todo:
        part = todo.pop()
        if part in ("", "."):
            continue
        if part == "..":
            del done[-1:]
            continue
        done.append(part)
        try:
            target = os.readlink("/".join([root, *done]))
        except OSError:  # no symlink, or nothing there: the caller's own call fails or not
            continue
        links += 1
        if links > MAX_LINKS:
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)
        done = [] if target.startswith("/") else done[:-1]
        todo.extend(target.split("/")[::-1])
    return "/".join([root, *done])


def _facts(found: os.stat_result) -> FileFacts:
    return FileFacts(
        kind=_kind(found.st_mode),
        permissions=stat.S_IMODE(found.st_mode),
        uid=found.st_uid,
        size_bytes=found.st_size,
        allocated_bytes=found.st_blocks * 512,
        device=found.st_dev,
        inode=found.st_ino,
        links=found.st_nlink,
        modified_at_seconds=found.st_mtime,
    )


def _kind(mode: int) -> Kind:
    return _KINDS.get(stat.S_IFMT(mode), Kind.OTHER)
