"""The OOM kills in the kernel's log, and whether a victim was in a container."""

import mmap
import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from msgspec import Struct

from sparkd.base.host.kernel import Record
from sparkd.base.lib.text import sanitize, size

_OOM_ROW = re.compile(r"\[ *(\d{1,10})\](?: +\d{1,20}){3} +(\d{1,20})(?: +\d{1,20}){2,6} +-?\d{1,5} (.{1,64})")
"""A row of dump_task in mm/oom_kill.c: pid, uid, tgid, total_vm, rss, since 6.8 its parts."""
_OOM_KILL = re.compile(
    r"oom-kill:constraint=CONSTRAINT_\w{1,20},nodemask=.{0,2000}?,(?:global_oom|oom_memcg=(?P<limit>[^,]{1,2000})),"
    r"task_memcg=(?P<group>[^,]{1,2000}),task=(?P<name>.{1,64}),pid=(?P<pid>\d{1,10}),uid=\d{1,10}"
)
"""The line of dump_oom_victim in that file."""
_USER_WRITABLE_GROUP = re.compile(r"^/user\.slice/|[^/]\.service/")
"""Groups below which a user may create groups, with any name."""


class OomKill(Struct, frozen=True):
    seconds: float
    """Since boot, by the kernel's own clock."""
    group: str
    """The victim's."""
    limit: str
    """The group whose memory limit was reached; empty where the machine had no memory left."""
    text: str


class _Process(NamedTuple):
    resident_bytes: int
    pid: str
    name: str


def names_container(group: str, container_id: str) -> bool:
    """Whether a group is the container's or below it, and not a user's group of that name."""
    before, named, rest = group.partition(container_id)
    is_name = before.endswith(("/", "/docker-")) and (not rest or rest.startswith(("/", ".scope")))
    return bool(named) and is_name and _USER_WRITABLE_GROUP.search(before) is None


def find_oom_kills(records: Iterable[Record]) -> Iterator[OomKill]:
    """The kernel's OOM kills, each described with the table of processes that precedes it."""
    processes = list[_Process]()
    for record in records:
        if record.text.startswith("Tasks state (memory values in pages):"):
            processes.clear()
        elif row := _OOM_ROW.fullmatch(record.text):
            processes.append(_Process(int(row[2]) * mmap.PAGESIZE, row[1], sanitize(row[3], 20)))
        # A user may give a group a name with another `task_memcg=`: then it is not known which one the kernel wrote.
        elif (kill := _OOM_KILL.fullmatch(record.text)) and record.text.count("task_memcg=") == 1:
            yield OomKill(
                record.seconds,
                kill["group"],
                kill["limit"] or "",
                _describe_kill(kill, sorted(processes, reverse=True)),
            )
            processes.clear()


def _describe_kill(kill: re.Match[str], processes: list[_Process]) -> str:
    rss = next((f", {size(process.resident_bytes)}" for process in processes if process.pid == kill["pid"]), "")
    limit = f"the memory limit of {sanitize(kill['limit'])}" if kill["limit"] else "the whole machine's memory"
    largest = ", ".join(f"{name} {size(resident_bytes)} (pid {pid})" for resident_bytes, pid, name in processes[:4])
    largest = f"; the largest processes then: {largest}" if largest else ""
    return f"{sanitize(kill['name'], 20)} (pid {kill['pid']}{rss}), at {limit}{largest}"
