"""Rooted reads: every path is looked up below one folder, and no symlink leads out of it."""

# ruff: noqa: PTH115, PTH116, PTH208
# Strings and os, not pathlib: a scan reads tens of thousands of paths, each several times slower through pathlib.

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from enum import Enum

from msgspec import Struct

LIMIT_BYTES = 4 << 20
"""What is read whole is small: units, tables of the kernel. A caller that expects more says so."""
MAX_LINKS = 40
"""Symlinks followed for one path, as the kernel does."""

# O_NONBLOCK: a FIFO where a file is expected must not hang the agent.
_READ = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY


class Kind(Enum):
    FILE = "file"
    FOLDER = "folder"
    DEVICE = "device"
    LINK = "symlink"
    SOCKET = "socket"
    OTHER = "something else"


class FileFacts(Struct, frozen=True):
    """What stat says, symlinks followed."""

    kind: Kind
    permissions: int
    uid: int
    gid: int
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
        """Whether anybody beside the owner may write."""
        return bool(self.permissions & 0o022)


class Opened(Struct, frozen=True):
    """Facts and content of one and the same file, whatever became of its name meanwhile."""

    facts: FileFacts
    content: bytes


class Files(Struct, frozen=True):
    """Reads below `root`. Every method raises OSError as the kernel would."""

    root: str = "/"

    def head(self, path: str, limit: int) -> bytes:
        """The first `limit` bytes, for what may be cut."""
        fd = os.open(self.real(path), _READ)
        try:
            return os.read(fd, limit)
        finally:
            os.close(fd)

    def itself(self, path: str, limit: int) -> Opened:
        """The file that `path` names. A symlink there is not followed: ELOOP."""
        parent, _, name = path.rpartition("/")
        fd = os.open(f"{self.real(parent or '/')}/{name}", _READ | os.O_NOFOLLOW)
        try:
            return Opened(_facts(os.fstat(fd)), _whole(fd, path, limit))
        finally:
            os.close(fd)

    def chunks(self, path: str) -> Iterator[bytes]:
        """The content in pieces of at most 1 MiB, for what is not to be held whole."""
        fd = os.open(self.real(path), os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
        try:
            while chunk := os.read(fd, 1 << 20):
                yield chunk
        finally:
            os.close(fd)

    def bytes(self, path: str, limit: int = LIMIT_BYTES) -> bytes:
        """The content, whole. More than `limit` bytes is EFBIG: half a table is worse than none."""
        fd = os.open(self.real(path), _READ)
        try:
            return _whole(fd, path, limit)
        finally:
            os.close(fd)

    def text(self, path: str, limit: int = LIMIT_BYTES) -> str:
        """As `bytes`; what is no UTF-8 reads as `\\xNN`."""
        return self.bytes(path, limit).decode("utf-8", "backslashreplace")

    def stat(self, path: str) -> FileFacts:
        return _facts(os.stat(self.real(path)))

    def exists(self, path: str) -> bool:
        """Whether there is something behind the last symlink. What may not be looked at raises."""
        try:
            os.stat(self.real(path))
        except (FileNotFoundError, NotADirectoryError):
            return False
        return True

    def names(self, path: str) -> tuple[str, ...]:
        """Names in a folder, sorted."""
        return tuple(sorted(os.listdir(self.real(path))))

    def link(self, path: str) -> str:
        """What a symlink says, unresolved: `socket:[123]` or a path."""
        parent, _, name = path.rpartition("/")
        return os.readlink(f"{self.real(parent or '/')}/{name}")

    def kind(self, path: str) -> Kind:
        """Of what `path` names: a symlink there is a symlink."""
        parent, _, name = path.rpartition("/")
        return _kind(os.lstat(f"{self.real(parent or '/')}/{name}").st_mode)

    def attribute(self, path: str, name: str) -> str:
        """An extended attribute of what `path` names; empty where it has none."""
        parent, _, last = path.rpartition("/")
        try:
            return os.getxattr(f"{self.real(parent or '/')}/{last}", name, follow_symlinks=False).decode("latin-1")
        except OSError as error:
            if error.errno in (errno.ENODATA, errno.ENOTSUP):
                return ""
            raise

    def links(self, path: str) -> Iterator[tuple[str, str]]:
        """Name and text of each symlink in a folder. One that goes away meanwhile is left out."""
        folder = self.real(path)
        for name in os.listdir(folder):
            try:
                yield name, os.readlink(f"{folder}/{name}")
            except FileNotFoundError:
                continue

    def real(self, path: str) -> str:
        """The path to hand to the kernel."""
        return path if self.root == "/" else _below(self.root, path)


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
        except OSError:  # no symlink, or nothing there: the caller's own call says which
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
        gid=found.st_gid,
        size_bytes=found.st_size,
        allocated_bytes=found.st_blocks * 512,
        device=found.st_dev,
        inode=found.st_ino,
        links=found.st_nlink,
        modified_at_seconds=found.st_mtime,
    )


def _kind(mode: int) -> Kind:
    if stat.S_ISREG(mode):
        return Kind.FILE
    if stat.S_ISDIR(mode):
        return Kind.FOLDER
    if stat.S_ISCHR(mode) or stat.S_ISBLK(mode):
        return Kind.DEVICE
    if stat.S_ISLNK(mode):
        return Kind.LINK
    return Kind.SOCKET if stat.S_ISSOCK(mode) else Kind.OTHER
