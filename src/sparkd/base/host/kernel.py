"""The kernel: version, settings, command line, the loaded NVIDIA module, and the log of this boot."""

from __future__ import annotations

import errno
import mmap
import os
import re
import stat
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import NamedTuple

from msgspec import Struct

from sparkd.base.host.files import Files
from sparkd.base.lib.text import natural_order, sanitize, size

LOG = "/dev/kmsg"
LOG_DEVICE = os.makedev(1, 11)
LOG_LIMIT_BYTES = 32 << 20
"""The ring holds a megabyte or two: past this, records are written faster than they can be read."""
RECORD_BYTES = 16384
"""Twice the longest record: a read into a smaller buffer fails."""

MODULE_VERSION = "/proc/driver/nvidia/version"
"""A file that NVIDIA's kernel module has while it is loaded."""
_MODULE = re.compile(r"NVRM version: +NVIDIA UNIX (Open )?.{0,80}?([0-9]{1,4}(?:\.[0-9]{1,4}){1,3})")
_RECORD = re.compile(rb"(\d{1,19}),(\d{1,19}),(\d{1,19}),[^;]*;(.*)", re.DOTALL)
"""Priority and facility, sequence, microseconds, flags; text."""
IMAGE = "vmlinuz-"
GRUB = "/etc/default/grub"
_GRUB = re.compile(r"^(GRUB_\w{1,40})=(.{0,2000})$", re.MULTILINE)


class NvidiaModule(NamedTuple):
    version: str
    open: bool


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


def read_next_boot(files: Files) -> tuple[str, tuple[str, ...]]:
    """The kernel that the next boot takes, and what GRUB's settings add to its command line.

    GRUB takes the highest version in /boot, unless GRUB_DEFAULT names another one. The kernel is empty then, and where
    /boot can't be read.
    """
    with suppress(OSError):
        drop_ins = (f"{GRUB}.d/{name}" for name in files.names_if_any(f"{GRUB}.d") if name.endswith(".cfg"))
        settings = [setting for path in (GRUB, *drop_ins) for setting in _GRUB.findall(files.text_if_any(path) or "")]
        words = [word for key, text in settings if "CMDLINE" in key for word in text.strip("'\"").split()]
        if dict(settings).get("GRUB_DEFAULT", "0").strip("'\"") != "0":
            return "", tuple(words)
        releases = (name.removeprefix(IMAGE) for name in files.names_if_any("/boot") if name.startswith(IMAGE))
        booted = (sanitize(release, 64) for release in releases if not release.endswith((".old", ".bak")))
        return max(booted, key=natural_order, default=""), tuple(words)
    return "", ()


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


def nvidia_module(files: Files) -> NvidiaModule | None:
    """The loaded module; None where there is none. Raises OSError."""
    if (text := files.text_if_any(MODULE_VERSION, limit=4096)) is None:
        return None
    if (match := _MODULE.match(text)) is None:  # whether the GPU works is judged by queries of its driver
        return NvidiaModule("of an unknown version", open=True)
    return NvidiaModule(match[2], bool(match[1]))


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

    In a tree of files it is a FIFO's.
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
        bytes_left = LOG_LIMIT_BYTES
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


SHOWN = 4
"""The largest processes that are named."""
_OOM_TABLE = "Tasks state (memory values in pages):"
_OOM_ROW = re.compile(r"\[ *(\d{1,10})\](?: +\d{1,20}){3} +(\d{1,20})(?: +\d{1,20}){2,6} +-?\d{1,5} (.{1,64})")
"""mm/oom_kill.c, dump_task: pid, uid, tgid, total_vm, rss, since 6.8 its parts."""
_OOM_KILL = re.compile(
    r"oom-kill:constraint=CONSTRAINT_\w{1,20},nodemask=.{0,2000}?,(?:global_oom|oom_memcg=(?P<limit>[^,]{1,2000})),"
    r"task_memcg=(?P<group>[^,]{1,2000}),task=(?P<name>.{1,64}),pid=(?P<pid>\d{1,10}),uid=\d{1,10}"
)
"""The same file, dump_oom_victim."""
_OF_USERS = re.compile(r"^/user\.slice/|[^/]\.service/")
"""Groups below which a user may create groups, with any name."""


class OomKill(Struct, frozen=True):
    seconds: float
    """Since boot, by the kernel's own clock."""
    group: str
    """The victim's."""
    text: str


def names_container(group: str, container_id: str) -> bool:
    """Whether a group is the container's or below it, and not a user's group of that name."""
    before, named, rest = group.partition(container_id)
    is_name = before.endswith(("/", "/docker-")) and (not rest or rest.startswith(("/", ".scope")))
    return bool(named) and is_name and _OF_USERS.search(before) is None


def find_oom_kills(records: Iterable[Record]) -> Iterator[OomKill]:
    """The kernel's OOM kills, each described with the table of processes that precedes it."""
    rows = list[tuple[int, str, str]]()
    for record in records:
        if record.text.startswith(_OOM_TABLE):
            rows.clear()
        elif row := _OOM_ROW.fullmatch(record.text):
            rows.append((int(row[2]) * mmap.PAGESIZE, row[1], sanitize(row[3], 20)))
        elif (kill := _OOM_KILL.fullmatch(record.text)) and record.text.count("task_memcg=") == 1:
            yield OomKill(record.seconds, kill["group"], _describe_kill(kill, sorted(rows, reverse=True)))
            rows.clear()


def _describe_kill(kill: re.Match[str], rows: list[tuple[int, str, str]]) -> str:
    rss = next((f", {size(resident)}" for resident, pid, _ in rows if pid == kill["pid"]), "")
    limit = f"the memory limit of {sanitize(kill['limit'])}" if kill["limit"] else "the whole machine's memory"
    largest = ", ".join(f"{name} {size(resident)} (pid {pid})" for resident, pid, name in rows[:SHOWN])
    largest = f"; the largest processes then: {largest}" if largest else ""
    return f"{sanitize(kill['name'], 20)} (pid {kill['pid']}{rss}), at {limit}{largest}"
