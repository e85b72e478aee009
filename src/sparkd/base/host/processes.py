"""All processes, each from its line in /proc/PID/stat, with more details of selected ones.

psutil lists the pids. The line has what psutil lacks: process group, clock ticks, kernel thread.
"""

import errno
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import cached_property

from msgspec import Struct
from msgspec.structs import replace

from sparkd.base.host import cgroups
from sparkd.base.host.cgroups import Group
from sparkd.base.host.files import Files
from sparkd.base.lib.text import sanitize

PROGRAM_WORDS = 32
"""A user may start thousands of processes with thousands of words each."""

_STATUS = re.compile(r"^(NSpid|RssAnon|RssShmem|Uid):(.*)", re.MULTILINE)

GONE = (FileNotFoundError, ProcessLookupError)
"""Raised by a read of a process's file when the process ended meanwhile."""


class OvergrownError(OSError):
    """A table is longer than what is read of it, and most of what was read belongs to `user`."""

    def __init__(self, what: str, user: str) -> None:
        super().__init__(errno.EFBIG, f"{what}, most of them of {user}")
        self.user = user


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
    """The effective uid, but 0 only where the real uid is 0 too: a user may start a setuid program."""
    namespace_pid: int
    """Its pid in its own PID namespace: 1 for a container's first process."""
    anonymous_bytes: int
    shared_bytes: int
    group: Group = Group()

    @property
    def frees_bytes(self) -> int:
        """Memory that its end frees, if no other process has the shared part, too."""
        return self.anonymous_bytes + self.shared_bytes


class ProcessTable(Struct, frozen=True, dict=True):
    processes: tuple[Process, ...]

    def __iter__(self) -> Iterator[Process]:
        return iter(self.processes)

    @cached_property
    def _by_pid(self) -> dict[int, Process]:
        return {process.pid: process for process in self.processes}

    @cached_property
    def _by_parent(self) -> dict[int, list[Process]]:
        children: dict[int, list[Process]] = {}
        for process in self.processes:
            children.setdefault(process.parent, []).append(process)
        return children

    def get(self, pid: int) -> Process | None:
        return self._by_pid.get(pid)

    def descendants(self, pid: int) -> tuple[Process, ...]:
        """Children, their children and so on, nearest first, without `pid` itself."""
        below: dict[int, Process] = {}
        todo = [pid]
        for parent in todo:
            children = self._by_parent.get(parent, ())
            new = {child.pid: child for child in children if child.pid != pid and child.pid not in below}
            below |= new
            todo += new
        return tuple(below.values())

    def topmost(self, pids: Iterable[int]) -> tuple[int, ...]:
        """Those of `pids` that descend from no other of them. Each process is visited once, in trees of any depth."""
        candidates = tuple(pids)
        below: set[int] = set()
        todo = list(candidates)
        while todo:
            children = [child.pid for child in self._by_parent.get(todo.pop(), ()) if child.pid not in below]
            below.update(children)
            todo += children
        return tuple(pid for pid in candidates if pid not in below)

    def group_leader(self, process: Process) -> Process | None:
        """The running leader of its process group, perhaps itself; None where that has ended."""
        leader = self.get(process.group)
        return leader if leader is not None and not leader.dead else None


def scan_processes(files: Files) -> ProcessTable:
    """Every process that could be read before it ended, in order of pid."""
    from sparkd.base.host import os_stats

    return ProcessTable(tuple(filter(None, (read_process(files, pid) for pid in os_stats.pids(files)))))


def read_process(files: Files, pid: int | str) -> Process | None:
    """A process, or a thread by `PID/task/TID`; None for one that has ended. Raises OSError where it is unreadable."""
    try:
        return parse_stat(files.bytes(f"/proc/{pid}/stat", limit=4096))
    except GONE:
        return None


def is_alive(files: Files, pid: int, start_time: int) -> bool:
    """Whether this very process still runs. Raises OSError where it is unreadable."""
    process = read_process(files, pid)
    return process is not None and not process.dead and process.start_time == start_time


def list_container(files: Files, pid: int, container_id: str) -> tuple[Process, ...]:
    """The processes of a container by its first, `pid`; none where that is in another container. Raises OSError."""
    try:
        inner_id, folder = cgroups.find_container(files, files.text(f"/proc/{pid}/cgroup", limit=65536))
        pids = files.text(f"{folder}/cgroup.procs", limit=1 << 20).split() if inner_id == container_id else []
    except GONE:
        return ()
    except OSError as error:
        if error.errno == errno.ENODEV:  # a group that is being removed
            return ()
        raise
    return tuple(filter(None, (read_process(files, number) for number in pids if number.isdecimal())))


def parse_stat(line: bytes) -> Process | None:
    """The process of a line; None for another format. Its name, in brackets, may itself have brackets and blanks."""
    head, _, tail = line.rpartition(b")")
    pid, _, comm = head.partition(b" (")
    fields = tail.split()
    try:
        return Process(
            pid=int(pid),
            comm=sanitize(comm.decode("utf-8", "backslashreplace"), 64),
            state=fields[0].decode("ascii", "replace"),
            parent=int(fields[1]),
            group=int(fields[2]),
            threads=int(fields[17]),
            start_time=int(fields[19]),
            kernel=bool(int(fields[6]) & 0x0020_0000),  # PF_KTHREAD
        )
    except (IndexError, ValueError):
        return None


def read_argv(files: Files, pid: int, limit: int = 4096) -> tuple[str, ...]:
    """The first `limit` words of a command line; empty once the process has ended.

    The NULs with which setproctitle pads the line are cut.
    """
    try:
        raw = files.head(f"/proc/{pid}/cmdline", 32 << 10).rstrip(b"\0")  # some have megabytes of words
    except GONE:
        return ()
    words = raw.split(b"\0", limit)[:limit] if raw else ()
    return tuple(sanitize(word.decode("utf-8", "backslashreplace"), 4096) for word in words)


def read_details(files: Files, process: Process) -> Details | None:
    """Details of a process; None once it has ended, even if its pid is another one's now. Raises PermissionError."""
    try:
        status = read_status(files, process.pid)
        group = cgroups.read_group(files, process.pid)
    except GONE:
        return None
    current = read_process(files, process.pid)
    if current is None or current.start_time != process.start_time:
        return None
    return replace(status, group=group)


def read_status(files: Files, pid: int) -> Details:
    """Details without its container. Raises one of GONE, OSError, and ValueError for another format."""
    text = files.text(f"/proc/{pid}/status", limit=1 << 20)
    defaults = {"NSpid": [str(pid)], "RssAnon": ["0"], "RssShmem": ["0"]}  # the last two for a kernel thread
    values = defaults | {match[1]: match[2].split() for match in _STATUS.finditer(text)}
    try:
        return Details(
            uid=int(values["Uid"][1]) or int(values["Uid"][0]),
            namespace_pid=int(values["NSpid"][-1]),  # one in each of its namespaces
            anonymous_bytes=int(values["RssAnon"][0]) * 1024,
            shared_bytes=int(values["RssShmem"][0]) * 1024,
        )
    except (IndexError, KeyError, ValueError):
        raise ValueError(f"/proc/{pid}/status has another format") from None


def overgrown(files: Files, what: str, uids: Iterable[int]) -> OvergrownError:
    """The error of a table that is too long. `uids`: the owners of the rows that were read."""
    most_common = Counter(uids).most_common(1)
    return OvergrownError(what, user_name(files, most_common[0][0]) if most_common else "an unknown user")


def user_name(files: Files, uid: int) -> str:
    """The name in /etc/passwd alone, since a network directory could hang a probe; `uid N` where it is not listed."""
    with suppress(OSError):
        if match := re.search(rf"^([^:\n]*):[^:\n]*:{uid}(?::|$)", files.text("/etc/passwd"), re.MULTILINE):
            return match[1]
    return f"uid {uid}"
