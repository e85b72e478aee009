"""Who has the machine's memory: containers, units and processes, the largest first."""

from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import NamedTuple

from msgspec import Struct

from sparkd.base.host.cgroups import Group, read_group
from sparkd.base.host.files import Files
from sparkd.base.host.processes import GONE, Details, Process, read_status, user_name

SMALLEST_BYTES = 16 << 20
"""Least memory of a process that counts by itself. A user's smaller ones are one consumer: thousands hold much, too."""


class Consumer(Struct, frozen=True):
    """A container, a unit, or a process that is in neither."""

    name: str
    """Full id of the container, name of the unit, or the process's own."""
    kind: str
    """"container", "unit", "user-unit", "process", or "small": small processes."""
    user: str
    pid: int
    """Its largest process."""
    processes: int
    bytes: int
    """Freed when it ends: anonymous memory, shared memory once, and memory that the GPU holds for it."""


class _Member(NamedTuple):
    """A process of a consumer."""

    pid: int
    bytes: int
    details: Details


def read_consumers(files: Files, among: Iterable[Process], gpu_bytes: Mapping[int, int]) -> tuple[Consumer, ...]:
    """Consumers, the largest first. `gpu_bytes` is by pid, for a GPU that shares the machine's memory."""
    members_by_consumer: dict[tuple[str, str, str], list[_Member]] = {}
    for process in among:
        if process.kernel or process.dead:
            continue
        with suppress(*GONE, PermissionError, ValueError):
            status = read_status(files, process.pid)
            member = _Member(process.pid, status.frees_bytes + gpu_bytes.get(process.pid, 0), status)
            identity = "small", "", str(status.uid)
            if member.bytes >= SMALLEST_BYTES:
                identity = _identify(read_group(files, process.pid), process)
            members_by_consumer.setdefault(identity, []).append(member)
    consumers = (_sum_members(files, *identity, members) for identity, members in members_by_consumer.items())
    return tuple(sorted(consumers, key=lambda consumer: (-consumer.bytes, consumer.name)))


def _identify(group: Group, process: Process) -> tuple[str, str, str]:
    """Kind, name and, for a user's unit, the user's uid, of the consumer that a large process belongs to."""
    if group.container_id:
        return "container", group.container_id, ""
    if group.unit:
        return "user-unit" if group.manager_uid else "unit", group.unit, group.manager_uid
    return "process", f"pid {process.pid} ({process.comm})", ""


def _sum_members(files: Files, kind: str, name: str, uid: str, members: list[_Member]) -> Consumer:
    largest = max(members, key=lambda member: member.bytes)
    # Members may map the same shared memory: the largest share counts for all.
    shared_bytes = max(member.details.shared_bytes for member in members)
    total_bytes = shared_bytes + sum(member.bytes - member.details.shared_bytes for member in members)
    user = user_name(files, int(uid or largest.details.uid))
    return Consumer(name or "small processes", kind, user, largest.pid, len(members), total_bytes)
