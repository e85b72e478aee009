"""All processes, each from its line in /proc/PID/stat; more is read of those that a question is about.

psutil lists them and names their users. The line holds what psutil has no word for: group, clock ticks, kernel thread.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cached_property
from typing import NamedTuple

from msgspec import Struct

from sparkd.host.files import Files
from sparkd.lib.text import sanitize

KERNEL_THREAD = 0x0020_0000
"""PF_KTHREAD of the flags in /proc/PID/stat."""
CMDLINE_BYTES = 32 << 10
"""What a process is stands in its first words; some have megabytes of them."""
STATUS_BYTES = 1 << 20
"""A process may be in 65,536 groups, which stand there too."""

_STATUS = re.compile(r"^(NSpid|RssAnon|RssShmem):[ \t]*(?:\d+[ \t]+)*(\d+)", re.MULTILINE)
"""Of several numbers the last: a process has a pid in each of its namespaces."""
_CONTAINER = re.compile(r"(?:^|[/:-])([0-9a-f]{64})(?:\.scope)?(?:/|$)")
"""docker/ID (cgroupfs), docker-ID.scope (systemd), libpod-ID.scope, cri-containerd-ID.scope: cgroup v1 and v2."""

GONE = (FileNotFoundError, ProcessLookupError)
"""What reading a process's file raises when the process ended meanwhile."""


class Process(Struct, frozen=True):
    """One line of /proc/PID/stat. `(pid, start_time)` names it for good."""

    pid: int
    comm: str
    """At most 15 characters, sanitized: a process may call itself anything."""
    state: str
    parent: int
    group: int
    threads: int
    start_time: int
    """Clock ticks since boot."""
    kernel: bool = False
    """A kernel thread: it has neither memory nor open files of its own."""

    @property
    def dead(self) -> bool:
        """Ended, and kept only until its parent asks how."""
        return self.state in "ZX" and self.threads <= 1


class Status(NamedTuple):
    namespace_pid: int
    anonymous_bytes: int
    shared_bytes: int


class Details(Struct, frozen=True):
    """What a closer look at one process gives."""

    uid: int
    """The effective one."""
    namespace_pid: int
    """Its pid in its own PID namespace: 1 for a container's first process."""
    container_id: str
    """Full id of the container that it runs in; empty outside."""
    private_bytes: int
    """Anonymous and shared memory in use: what its end gives back."""


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

    def children(self, pid: int) -> tuple[Process, ...]:
        return tuple(self._by_parent.get(pid, ()))

    def descendants(self, pid: int) -> tuple[Process, ...]:
        """Children, their children and so on, nearest first, without `pid` itself."""
        found: dict[int, Process] = {}
        todo = list(self.children(pid))
        while todo:
            process = todo.pop(0)
            if process.pid != pid and process.pid not in found:
                found[process.pid] = process
                todo.extend(self.children(process.pid))
        return tuple(found.values())

    def group_leader(self, process: Process) -> Process | None:
        """The living leader of its process group, perhaps itself; None where the group has lost it."""
        leader = self.get(process.group)
        return leader if leader is not None and not leader.dead else None


def scan(files: Files) -> ProcessTable:
    """Every process that could be read before it ended, in order of pid."""
    from sparkd.host import os_stats

    found = []
    for pid in os_stats.pids(files):
        try:
            process = parse_stat(files.bytes(f"/proc/{pid}/stat", limit=4096))
        except GONE:
            continue
        if process is not None:
            found.append(process)
    return ProcessTable(tuple(found))


def parse_stat(line: bytes) -> Process | None:
    """None for what is no such line. The name in brackets may itself hold brackets and blanks."""
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


def argv(files: Files, pid: int) -> tuple[str, ...]:
    """Arguments of a process; what setproctitle pads with NULs is cut. Raises one of GONE."""
    raw = files.head(f"/proc/{pid}/cmdline", CMDLINE_BYTES).rstrip(b"\0")
    return tuple(sanitize(word, 4096) for word in raw.decode("utf-8", "backslashreplace").split("\0")) if raw else ()


def details(files: Files, process: Process) -> Details | None:
    """None when the process has ended, or its pid names another by now. PermissionError is the caller's to judge."""
    from sparkd.host import os_stats

    try:
        status = read_status(files, process.pid)
        found = Details(
            uid=os_stats.effective_uid(files, process.pid),
            namespace_pid=status.namespace_pid or process.pid,
            container_id=container_id(files.text(f"/proc/{process.pid}/cgroup", limit=65536)),
            private_bytes=status.anonymous_bytes + status.shared_bytes,
        )
        again = parse_stat(files.bytes(f"/proc/{process.pid}/stat", limit=4096))
    except GONE:
        return None
    return found if again is not None and again.start_time == process.start_time else None


def container_id(cgroup: str) -> str:
    """Id of the innermost container in the text of /proc/PID/cgroup."""
    for line in cgroup.splitlines():
        ids: list[str] = []
        for part in line.split(":", 2)[-1].split("/"):
            ids += _CONTAINER.findall(part)
        if ids:
            return ids[-1]
    return ""


def read_status(files: Files, pid: int) -> Status:
    """What /proc/PID/status has beside psutil's words; 0 for what it leaves out. Raises one of GONE."""
    text = files.text(f"/proc/{pid}/status", limit=STATUS_BYTES)
    said = {match[1]: int(match[2]) for match in _STATUS.finditer(text)}
    return Status(said.get("NSpid", 0), said.get("RssAnon", 0) * 1024, said.get("RssShmem", 0) * 1024)
