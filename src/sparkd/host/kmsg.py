"""The kernel's log of this boot, as /dev/kmsg gives it: one record a read, `prio,sequence,microseconds,flags;text`."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator

from msgspec import Struct

from sparkd.host.files import Files

PATH = "/dev/kmsg"
DEVICE = os.makedev(1, 11)
LIMIT_BYTES = 32 << 20
"""The ring holds a megabyte or two. More than this comes from somebody who writes faster than it can be read."""
RECORD_BYTES = 16384
"""Twice the longest that the kernel makes of one: a read with less room for it fails."""


class Record(Struct, frozen=True):
    sequence: int
    seconds: float
    """Since boot, by the kernel's own clock."""
    text: str


def records(files: Files) -> Iterator[Record]:
    """What the kernel itself said, oldest first. Raises OSError: FileNotFoundError where this node has no log.

    What others wrote to the log is left out: the kernel marks it as not its own.
    """
    for line in _lines(files):
        record = parse(line)
        if record is not None:
            yield record


def parse(line: bytes) -> Record | None:
    """None for what is no record of the kernel: a continuation, another's words, or nonsense."""
    head, separator, text = line.partition(b";")
    fields = head.split(b",")
    if not separator or len(fields) < 4 or not all(field.isdigit() and len(field) < 20 for field in fields[:3]):
        return None
    priority, sequence, microseconds = (int(field) for field in fields[:3])
    if priority >> 3:  # the facility: 0 is the kernel, and nobody else can write as it
        return None
    return Record(sequence, microseconds / 1e6, text.decode("utf-8", "backslashreplace"))


def _lines(files: Files) -> Iterator[bytes]:
    pending = b""
    for chunk in _chunks(files):
        *lines, pending = (pending + chunk).split(b"\n")
        yield from lines
    yield pending


def _chunks(files: Files) -> Iterator[bytes]:
    fd = os.open(files.real(PATH), os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
    try:
        if not _is_log(os.fstat(fd), live=files.root == "/"):
            raise FileNotFoundError(errno.ENOENT, "no kernel log", PATH)
        left = LIMIT_BYTES
        while left > 0:
            try:
                chunk = os.read(fd, RECORD_BYTES)
            except BlockingIOError:  # no more for now
                return
            except (
                BrokenPipeError
            ):  # overwritten before it was read: the next read goes on with the oldest that is left
                continue
            if not chunk:
                return
            left -= len(chunk)
            yield chunk
    finally:
        os.close(fd)


def _is_log(found: os.stat_result, live: bool) -> bool:
    """Containers have a console or /dev/null in its place. A device in a tree of files is the log of this machine."""
    if live:
        return stat.S_ISCHR(found.st_mode) and found.st_rdev == DEVICE
    return stat.S_ISREG(found.st_mode)
