"""The kernel: version, settings, command line, the loaded NVIDIA module, and the log of this boot."""

from __future__ import annotations

import errno
import os
import re
import stat
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import NamedTuple

from msgspec import Struct

from sparkd.base.host.files import Files
from sparkd.base.lib.text import sanitize

LOG = "/dev/kmsg"
LOG_DEVICE = os.makedev(1, 11)
LOG_LIMIT_BYTES = 32 << 20
"""The ring holds a megabyte or two: past this, records are written faster than they can be read."""
RECORD_BYTES = 16384
"""Twice the longest record: a read into a smaller buffer fails."""

_MODULE = re.compile(r"NVRM version: +NVIDIA UNIX (Open )?.{0,80}?([0-9]{1,4}(?:\.[0-9]{1,4}){1,3})")
_RECORD = re.compile(rb"(\d{1,19}),(\d{1,19}),(\d{1,19}),[^;]*;(.*)", re.DOTALL)
"""Priority and facility, sequence, microseconds, flags; text."""
IMAGE = "vmlinuz-"
GRUB = "/etc/default/grub"
_GRUB = re.compile(r"^(GRUB_\w{1,40})=(.{0,2000})$", re.MULTILINE)


class NvidiaModule(NamedTuple):
    version: str
    open: bool


class Record(Struct, frozen=True):
    sequence: int
    seconds: float
    """Since boot, by the kernel's own clock."""
    text: str


def read_release(files: Files) -> str:
    """As in `uname -r`; empty where unreadable."""
    try:
        return sanitize(files.value("/proc/sys/kernel/osrelease"), 100)
    except OSError:
        return ""


def read_command_line(files: Files) -> tuple[str, ...]:
    """Words of the boot command line; empty where unreadable."""
    try:
        return tuple(files.text("/proc/cmdline", limit=65536).split())
    except OSError:
        return ()


def read_next_boot(files: Files) -> tuple[str, tuple[str, ...]]:
    """The kernel that the next boot takes, and what GRUB's settings add to its command line.

    GRUB takes the highest version in /boot, unless GRUB_DEFAULT names another: then it is empty, as where /boot can't
    be read.
    """
    with suppress(OSError):
        more = (f"{GRUB}.d/{name}" for name in files.names_if_any(f"{GRUB}.d") if name.endswith(".cfg"))
        entries = [entry for path in (GRUB, *more) for entry in _GRUB.findall(files.text_if_any(path) or "")]
        words = [word for key, text in entries if "CMDLINE" in key for word in text.strip("'\"").split()]
        if dict(entries).get("GRUB_DEFAULT", "0").strip("'\"") != "0":
            return "", tuple(words)
        releases = (name.removeprefix(IMAGE) for name in files.names_if_any("/boot") if name.startswith(IMAGE))
        booted = (sanitize(release, 64) for release in releases if not release.endswith((".old", ".bak")))
        return max(booted, key=_by_version, default=""), tuple(words)
    return "", ()


def _by_version(release: str) -> list[tuple[int, str]]:
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d{1,9})", release)]


def sysctl_path(name: str) -> str:
    return f"/proc/sys/{name.replace('.', '/')}"


def read_sysctl(files: Files, name: str) -> str | None:
    """Its words, one blank apart; None without such a setting, and for a write-only command such as
    vm.compact_memory. Raises OSError.
    """
    try:
        text = files.text_if_any(sysctl_path(name), limit=65536)
        return None if text is None else " ".join(text.split())
    except PermissionError:
        if files.stat(sysctl_path(name)).permissions & 0o444:
            raise
        return None


def nvidia_module(files: Files) -> NvidiaModule | None:
    if (text := files.text_if_any("/proc/driver/nvidia/version", limit=4096)) is None:
        return None
    if (found := _MODULE.match(text)) is None:  # whether the GPU works is judged by queries of its driver
        return NvidiaModule("of an unknown version", open=True)
    return NvidiaModule(found[2], bool(found[1]))


def read_log(files: Files) -> Iterator[Record]:
    """The kernel's own records, oldest first, without those that programs wrote into its log.

    Raises OSError: FileNotFoundError where this node has no log.
    """
    pending = b""
    for chunk in _chunks(files):
        *lines, pending = (pending + chunk).split(b"\n")
        yield from filter(None, map(parse_record, lines))
    yield from filter(None, [parse_record(pending)])


def parse_record(line: bytes) -> Record | None:
    """None where it is no record of the kernel: a continuation, a program's record, or another format."""
    match = _RECORD.match(line)
    if match is None or int(match[1]) >> 3:  # the facility: only the kernel can write with 0
        return None
    return Record(int(match[2]), int(match[3]) / 1e6, match[4].decode("utf-8", "backslashreplace"))


def open_log_end(files: Files) -> int:
    """A descriptor that new records are read from, without waiting; in a tree of files that of a FIFO. Raises OSError
    as `read_log`.
    """
    with files.opened(LOG) as fd:
        if _require_log(fd, files, stat.S_ISFIFO):
            os.lseek(fd, 0, os.SEEK_END)
        return os.dup(fd)


def _require_log(fd: int, files: Files, stands_in: Callable[[int], bool]) -> bool:
    """Whether it is the device. Raises FileNotFoundError where it is neither that nor, in a tree, what stands in."""
    found = os.fstat(fd)
    # Containers have a console or /dev/null there. A device in a tree of files is the log of this machine.
    is_device = stat.S_ISCHR(found.st_mode) and found.st_rdev == LOG_DEVICE
    if not (is_device if files.root == "/" else stands_in(found.st_mode)):
        raise FileNotFoundError(errno.ENOENT, "no kernel log", LOG)
    return is_device


def _chunks(files: Files) -> Iterator[bytes]:
    """Of the log: one record per read of the device."""
    with files.opened(LOG) as fd:
        _require_log(fd, files, stat.S_ISREG)
        left = LOG_LIMIT_BYTES
        while left > 0:
            try:
                chunk = os.read(fd, RECORD_BYTES)
            except BlockingIOError:  # no more for now
                return
            except BrokenPipeError:  # overwritten before it was read: the next read returns the oldest record left
                continue
            if not chunk:
                return
            left -= len(chunk)
            yield chunk
