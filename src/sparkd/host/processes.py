"""All processes, each from its line in /proc/PID/stat, with more details of selected ones; the owner of this node.

psutil lists the pids. The line has what psutil lacks: process group, clock ticks, kernel thread.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import cached_property

from msgspec import Struct
from msgspec.json import decode
from msgspec.structs import replace

from sparkd.host import cgroups
from sparkd.host.cgroups import Group
from sparkd.host.files import Files
from sparkd.lib.text import sanitize

KERNEL_THREAD = 0x0020_0000
"""PF_KTHREAD of the flags in /proc/PID/stat."""
CMDLINE_BYTES = 32 << 10
"""The first words identify a process; some have megabytes of them."""
PROGRAM_WORDS = 32
"""A user may start thousands of processes with thousands of words each."""
STATUS_BYTES = 1 << 20
UNLIMITED = -1

_STATUS = re.compile(r"^(NSpid|RssAnon|RssShmem|Uid):(.*)", re.MULTILINE)
_LOCKED_MEMORY = re.compile(r"^Max locked memory +(unlimited|\d+) ", re.MULTILINE)

OWNER_LOCK, OWNER_FILE = "/run/sparkd/hands.lock", "/run/sparkd/owner.json"
"""Who can open the lock can hold it, so root alone can. Everybody may read who the owner is."""
LOCKS_BYTES = 16 << 20
GONE = (FileNotFoundError, ProcessLookupError)
"""Raised by a read of a process's file when the process ended meanwhile."""


class Process(Struct, frozen=True):
    """One line of /proc/PID/stat. `(pid, start_time)` identifies it until the next boot."""

    pid: int
    comm: str
    """At most 15 characters, sanitized: a process may choose any name."""
    state: str
    parent: int
    group: int
    threads: int
    start_time: int
    """Clock ticks since boot."""
    kernel: bool = False
    """A kernel thread has neither memory nor open files of its own."""

    @property
    def dead(self) -> bool:
        """Ended, and kept only until its parent reads the exit status."""
        return self.state in "ZX" and self.threads <= 1


class Details(Struct, frozen=True):
    uid: int
    """The effective one, but root's only where the real one is root's too: a user may start a setuid program."""
    namespace_pid: int
    """Its pid in its own PID namespace: 1 for a container's first process."""
    anonymous_bytes: int
    shared_bytes: int
    group: Group = Group()

    @property
    def private_bytes(self) -> int:
        return self.anonymous_bytes + self.shared_bytes


class OpenFile(Struct, frozen=True):
    pid: int
    descriptor: str
    target: str
    """A path, ` (deleted)` behind it once unlinked, or `socket:[inode]`."""


class OpenFiles(Struct, frozen=True):
    found: tuple[OpenFile, ...]
    unreadable_pids: tuple[int, ...]
    """Processes whose descriptors are unreadable: anything may be open there."""


class NodeOwner(Struct, frozen=True):
    """The holder of the lock, by its own account. Command and invocation are empty where there is none of it."""

    pid: int
    command: str
    """As typed: `sparkd run --role head`."""
    invocation: str
    """systemd's, or generated at a start by hand: the `io.sparkd.invocation` of this owner's containers."""
    start_time: int = 0
    """As in Process."""

    @property
    def hint(self) -> str:
        """For who wants its place. Commands other than the agent end by themselves."""
        agent = not self.command or self.command.startswith("sparkd run")
        return "stop that first: systemctl stop sparkd-head sparkd-worker" if agent else "it ends by itself: try again"


class ProcessTable(Struct, frozen=True, dict=True):
    processes: tuple[Process, ...]

    def __iter__(self) -> Iterator[Process]:
        return iter(self.processes)

    @cached_property
    def _by_pid(self) -> dict[int, Process]:
        return {process.pid: process for process in self.processes}

    @cached_property
    def _by_parent(self) -> dict[int, list[Process]]:
        found: dict[int, list[Process]] = {}
        for process in self.processes:
            found.setdefault(process.parent, []).append(process)
        return found

    def get(self, pid: int) -> Process | None:
        return self._by_pid.get(pid)

    def descendants(self, pid: int) -> tuple[Process, ...]:
        """Children, their children and so on, nearest first, without `pid` itself."""
        found: dict[int, Process] = {}
        todo = [pid]
        for parent in todo:
            new = [one for one in self._by_parent.get(parent, ()) if one.pid != pid and one.pid not in found]
            found.update((one.pid, one) for one in new)
            todo += [one.pid for one in new]
        return tuple(found.values())

    def topmost(self, pids: Iterable[int]) -> tuple[int, ...]:
        """Those of them that descend from no other of them. Each process is visited once, in trees of any depth."""
        among = tuple(pids)
        below: set[int] = set()
        todo = list(among)
        while todo:
            new = [one.pid for one in self._by_parent.get(todo.pop(), ()) if one.pid not in below]
            below.update(new)
            todo += new
        return tuple(pid for pid in among if pid not in below)

    def group_leader(self, process: Process) -> Process | None:
        """The running leader of its process group, perhaps itself; None where that has ended."""
        leader = self.get(process.group)
        return leader if leader is not None and not leader.dead else None


def scan_processes(files: Files) -> ProcessTable:
    """Every process that could be read before it ended, in order of pid."""
    from sparkd.host import os_stats

    found = (read_process(files, pid) for pid in os_stats.pids(files))
    return ProcessTable(tuple(process for process in found if process is not None))


def read_process(files: Files, pid: int | str) -> Process | None:
    """None for one that has ended. Raises OSError where it is unreadable."""
    try:
        return parse_stat(files.bytes(f"/proc/{pid}/stat", limit=4096))
    except GONE:
        return None


def parse_stat(line: bytes) -> Process | None:
    """None for another format. The name in brackets may itself contain brackets and blanks."""
    before, _, after = line.rpartition(b")")
    pid, _, comm = before.partition(b" (")
    fields = after.split()
    try:
        return Process(
            pid=int(pid),
            comm=sanitize(comm.decode("utf-8", "backslashreplace"), 64),
            state=fields[0].decode("ascii", "replace"),
            parent=int(fields[1]),
            group=int(fields[2]),
            threads=int(fields[17]),
            start_time=int(fields[19]),
            kernel=bool(int(fields[6]) & KERNEL_THREAD),
        )
    except (IndexError, ValueError):
        return None


def read_argv(files: Files, pid: int, limit: int = 4096) -> tuple[str, ...]:
    """The first words; empty once it has ended. The NULs with which setproctitle pads it are cut."""
    try:
        raw = files.head(f"/proc/{pid}/cmdline", CMDLINE_BYTES).rstrip(b"\0")
    except GONE:
        return ()
    words = raw.split(b"\0", limit)[:limit] if raw else ()
    return tuple(sanitize(word.decode("utf-8", "backslashreplace"), 4096) for word in words)


def read_details(files: Files, process: Process) -> Details | None:
    """None when the process has ended, even if its pid belongs to another one now. Raises PermissionError."""
    try:
        status = read_status(files, process.pid)
        group = cgroups.read_group(files, process.pid)
    except GONE:
        return None
    again = read_process(files, process.pid)
    if again is None or again.start_time != process.start_time:
        return None
    return replace(status, group=group)


def read_status(files: Files, pid: int) -> Details:
    """Without its container. Raises one of GONE, OSError, and ValueError for another format."""
    text = files.text(f"/proc/{pid}/status", limit=STATUS_BYTES)
    found = {match[1]: match[2].split() for match in _STATUS.finditer(text)}
    try:
        return Details(
            uid=int(found["Uid"][1]) or int(found["Uid"][0]),
            namespace_pid=int(found["NSpid"][-1]) if "NSpid" in found else pid,  # one in each of its namespaces
            anonymous_bytes=int(found["RssAnon"][0]) * 1024 if "RssAnon" in found else 0,  # missing for a kernel thread
            shared_bytes=int(found["RssShmem"][0]) * 1024 if "RssShmem" in found else 0,
        )
    except (IndexError, KeyError, ValueError):
        raise ValueError(f"/proc/{pid}/status has another format") from None


def open_files(files: Files, processes: Iterable[Process]) -> OpenFiles:
    """Every open descriptor of these processes, without those that ended meanwhile."""
    found: list[OpenFile] = []
    unreadable = []
    for process in processes:
        if process.kernel or process.dead:
            continue
        try:
            found.extend(OpenFile(process.pid, *link) for link in files.links(f"/proc/{process.pid}/fd"))
        except GONE:
            continue
        except OSError:
            unreadable.append(process.pid)
    return OpenFiles(tuple(found), tuple(unreadable))


def locked_memory_limit(files: Files, pid: int) -> int:
    """In bytes; UNLIMITED where there is none. Raises OSError, and ValueError for another format."""
    limit = _LOCKED_MEMORY.search(files.text(f"/proc/{pid}/limits", limit=65536))
    if limit is None:
        raise ValueError(f"/proc/{pid}/limits does not say how much memory may be locked")
    return UNLIMITED if limit[1] == "unlimited" else int(limit[1])


def user_name(files: Files, uid: int) -> str:
    """From /etc/passwd alone, since a network directory could hang a probe; `uid N` where it is not listed."""
    with suppress(OSError):
        if found := re.search(rf"^([^:\n]*):[^:\n]*:{uid}(?::|$)", files.text("/etc/passwd"), re.MULTILINE):
            return found[1]
    return f"uid {uid}"


def read_owner(files: Files) -> NodeOwner | None:
    """The process that owns this node; None where none does. The lock is not touched. Raises OSError.

    An account in OWNER_FILE, which root alone can write, counts while the process that wrote it lives.
    """
    with suppress(FileNotFoundError, ValueError):
        account = decode(files.itself(OWNER_FILE, 65536).content, type=NodeOwner)
        process = read_process(files, account.pid)
        if process is not None and not process.dead and process.start_time == account.start_time:
            return replace(account, command=sanitize(account.command), invocation=sanitize(account.invocation))
    pid = _lock_holder(files)
    return None if pid is None else NodeOwner(pid, "", "")


def _lock_holder(files: Files) -> int | None:
    try:
        lock = files.stat(OWNER_LOCK)
    except FileNotFoundError:
        return None
    # `1: FLOCK  ADVISORY  WRITE 5069 fe:00:2146417 0 EOF`; a waiting process has `->` behind the number.
    file = f"{os.major(lock.device):02x}:{os.minor(lock.device):02x}:{lock.inode}"
    pattern = re.compile(rf"^\d+: FLOCK +\S+ +\S+ +(-?\d+) {file} ", re.MULTILINE)
    found = pattern.search(files.text("/proc/locks", limit=LOCKS_BYTES))
    return int(found[1]) if found else None
