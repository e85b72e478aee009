"""The running kernel: version, settings, command line, the loaded NVIDIA module, and the log of this boot."""

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
RECORD_BYTES = 16384
"""Twice the longest record: a read into a smaller buffer fails."""

MODULE_VERSION = "/proc/driver/nvidia/version"
"""A file that NVIDIA's kernel module has while it is loaded."""
_MODULE = re.compile(r"NVRM version: +NVIDIA UNIX (Open )?.{0,80}?([0-9]{1,4}(?:\.[0-9]{1,4}){1,3})")
_RECORD = re.compile(rb"(\d{1,19}),(\d{1,19}),(\d{1,19}),[^;]*;(.*)", re.DOTALL)
"""Priority and facility, sequence, microseconds, flags; text."""


class NvidiaModule(NamedTuple):
    """The version that NVIDIA's loaded kernel module gives of itself."""

    version: str
    """Digits and dots; "of an unknown version" where its text has another format."""
    open: bool
    """Whether it is the open kernel module, which GB10 needs; true where that is unknown."""


class Recovery(Struct, frozen=True):
    """What a machine does by itself after its kernel has panicked or hangs."""

    reboots: bool = False
    watchdog: str = ""
    """Name of the hardware's timer that resets it; empty where there is none."""
    active: bool | None = None
    """Whether a program serves that timer; None where the kernel does not say."""

    @property
    def text(self) -> str:
        panic = "reboots" if self.reboots else "stays down"
        use = {True: "is active", False: "is not in use", None: "may be in use"}[self.active]
        watchdog = f"watchdog {self.watchdog} {use}" if self.watchdog else "no watchdog"
        return f"after a panic the machine {panic}; {watchdog}"


class Record(Struct, frozen=True):
    sequence: int
    seconds: float
    """Since boot, by the kernel's own clock."""
    text: str


def read_release(files: Files) -> str:
    """The release, as in `uname -r`; empty where unreadable."""
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


def sysctl_path(name: str) -> str:
    return f"/proc/sys/{name.replace('.', '/')}"


def read_sysctl(files: Files, name: str) -> str | None:
    """The words of a setting, one blank apart. Raises OSError.

    None where there is no such setting, and for a write-only command such as vm.compact_memory.
    """
    try:
        text = files.text_if_any(sysctl_path(name), limit=65536)
        return None if text is None else " ".join(text.split())
    except PermissionError:
        if files.stat(sysctl_path(name)).permissions & 0o444:
            raise
        return None


def read_recovery(files: Files) -> Recovery:
    """How the machine recovers. What is unreadable counts as not set."""

    def value(path: str) -> str:
        with suppress(OSError):
            return sanitize((files.text_if_any(path, limit=4096) or "").strip(), 60)
        return ""

    folder = "/sys/class/watchdog/watchdog0"
    watchdog = value(f"{folder}/identity") or "watchdog0"
    has_watchdog = files.exists(folder) or files.exists("/dev/watchdog0")
    active = {"active": True, "inactive": False}.get(value(f"{folder}/state"))
    return Recovery(value(sysctl_path("kernel.panic")) not in ("", "0"), watchdog if has_watchdog else "", active)


def read_nvidia_module(files: Files) -> NvidiaModule | None:
    """NVIDIA's kernel module; None where none is loaded. Raises OSError."""
    if (text := files.text_if_any(MODULE_VERSION, limit=4096)) is None:
        return None
    if (match := _MODULE.match(text)) is None:
        # No fault by itself: whether the GPU works is judged by queries of its driver.
        return NvidiaModule("of an unknown version", open=True)
    return NvidiaModule(match[2], bool(match[1]))


def lacks_nvidia_module(files: Files, release: str) -> bool:
    """Whether a kernel's modules are listed, and NVIDIA's is none of them. Raises OSError."""
    listing = files.text_if_any(f"/lib/modules/{release}/modules.dep") or ""  # empty in the tree of a capture
    return bool(listing) and "/nvidia.ko" not in listing


def read_log(files: Files) -> Iterator[Record]:
    """The kernel's own records, oldest first, without those that programs wrote into its log.

    Raises OSError: FileNotFoundError where this node has no log.
    """
    pending = b""
    for chunk in _read_chunks(files):
        *lines, pending = (pending + chunk).split(b"\n")
        yield from filter(None, map(parse_record, lines))
    yield from filter(None, [parse_record(pending)])


def parse_record(line: bytes) -> Record | None:
    """The record of a line; None for a continuation, a program's record, and another format."""
    match = _RECORD.match(line)
    if match is None or int(match[1]) >> 3:  # the facility: only the kernel can write with 0
        return None
    return Record(int(match[2]), int(match[3]) / 1e6, match[4].decode("utf-8", "backslashreplace"))


def open_log_end(files: Files) -> int:
    """Open the log behind its last record; returns a descriptor that does not block. Raises OSError as `read_log`.

    In a test's tree of files, a FIFO stands for the device.
    """
    with files.opened(LOG) as fd:
        if _require_log(fd, files, stat.S_ISFIFO):
            os.lseek(fd, 0, os.SEEK_END)
        return os.dup(fd)


def _require_log(fd: int, files: Files, stands_in: Callable[[int], bool]) -> bool:
    """Whether `fd` is the device. In a tree of files, `stands_in` accepts the type (st_mode) of what replaces it.

    Raises FileNotFoundError for anything else.
    """
    status = os.fstat(fd)
    # Containers have a console or /dev/null there. A device in a tree of files is the log of this machine.
    is_device = stat.S_ISCHR(status.st_mode) and status.st_rdev == LOG_DEVICE
    if not (is_device if files.root == "/" else stands_in(status.st_mode)):
        raise FileNotFoundError(errno.ENOENT, "no kernel log", LOG)
    return is_device


def _read_chunks(files: Files) -> Iterator[bytes]:
    """Pieces of the log: one record per read of the device."""
    with files.opened(LOG) as fd:
        _require_log(fd, files, stat.S_ISREG)
        bytes_left = 32 << 20  # the ring holds a megabyte or two: past this, records come faster than they can be read
        while bytes_left > 0:
            try:
                chunk = os.read(fd, RECORD_BYTES)
            except BlockingIOError:  # no more for now
                return
            except BrokenPipeError:  # overwritten before it was read: the next read returns the oldest record left
                continue
            if not chunk:
                return
            bytes_left -= len(chunk)
            yield chunk
