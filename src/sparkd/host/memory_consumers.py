"""Memory use of processes, summed by their container or systemd unit."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from msgspec import Struct

from sparkd.host.files import Files
from sparkd.host.processes import GONE, Process, Status, container_id, read_status, user_name
from sparkd.lib.text import sanitize

SMALLEST_BYTES = 16 << 20

_UNIT = re.compile(r".+\.(?:service|scope)")
_USER_MANAGER = re.compile(r"user@\d+\.service")


class Consumer(Struct, frozen=True):
    """A container, a unit, or a process that is in neither."""

    name: str
    """Full id of the container, name of the unit, or the process's own."""
    kind: str
    """"container", "unit", "user-unit" or "process"."""
    user: str
    pid: int
    """Its largest process."""
    processes: int
    bytes: int
    """Freed when it ends: anonymous memory, shared memory once, and memory that the GPU holds for it."""


def read_consumers(files: Files, among: Iterable[Process], gpu_bytes: Mapping[int, int]) -> tuple[Consumer, ...]:
    """Largest first. `gpu_bytes` is by pid, for a GPU that shares the machine's memory."""
    groups: dict[tuple[str, str], list[tuple[int, int, Status]]] = {}
    for process in among:
        if process.kernel or process.dead:
            continue
        try:
            status = read_status(files, process.pid)
            size = status.private_bytes + gpu_bytes.get(process.pid, 0)
            if size >= SMALLEST_BYTES:
                group = _group(files.text(f"/proc/{process.pid}/cgroup", limit=65536), process)
                groups.setdefault(group, []).append((size, process.pid, status))
        except (*GONE, PermissionError, ValueError):
            continue
    found = [_sum_members(files, kind, name, members) for (kind, name), members in groups.items()]
    return tuple(sorted(found, key=lambda one: (-one.bytes, one.name)))


def _group(cgroup: str, process: Process) -> tuple[str, str]:
    if container := container_id(cgroup):
        return "container", container
    for line in cgroup.splitlines():
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if number != "0" and controllers != "name=systemd":
            continue
        parts = [part for part in path.split("/") if _UNIT.fullmatch(part)]
        if parts:
            # Groups below a unit belong to it, except below a user's manager, which has units of its own.
            of_user = len(parts) > 1 and _USER_MANAGER.fullmatch(parts[0]) is not None
            return "user-unit" if of_user else "unit", sanitize(parts[of_user], 120)
    return "process", f"pid {process.pid} ({process.comm})"


def _sum_members(files: Files, kind: str, name: str, members: list[tuple[int, int, Status]]) -> Consumer:
    _, pid, largest = max(members, key=lambda member: member[0])
    # Several of them map the same shared memory: the largest share counts for all.
    shared = max(status.shared_bytes for _, _, status in members)
    total = shared + sum(size - status.shared_bytes for size, _, status in members)
    return Consumer(name, kind, user_name(files, largest.uid), pid, len(members), total)
