"""Who holds memory: processes by the container or the systemd unit that they belong to."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from msgspec import Struct

from sparkd.host import users
from sparkd.host.files import Files
from sparkd.host.processes import GONE, Process, container_id, read_status
from sparkd.lib.text import sanitize

SMALLEST_BYTES = 16 << 20
"""A process with less is not looked at closer, nor counted."""

_UNIT = re.compile(r".+\.(?:service|scope)")
_USER_MANAGER = re.compile(r"user@\d+\.service")
_UNREADABLE = (*GONE, PermissionError)


class Tenant(Struct, frozen=True):
    """A container, a unit, or a process that is in neither."""

    name: str
    """Full id of the container, name of the unit, or the process's own."""
    kind: str
    """"container", "unit", "user-unit" or "process"."""
    user: str
    """Of its largest process."""
    pid: int
    """Its largest process."""
    processes: int
    bytes: int
    """What its end gives back: anonymous memory, shared memory once, and what the GPU holds for it."""


class _Share(Struct, frozen=True):
    pid: int
    anonymous_bytes: int
    shared_bytes: int
    gpu_bytes: int

    @property
    def bytes(self) -> int:
        return self.anonymous_bytes + self.shared_bytes + self.gpu_bytes


def read(files: Files, among: Iterable[Process], gpu_bytes: Mapping[int, int]) -> tuple[Tenant, ...]:
    """All of them, largest first. `gpu_bytes` is by pid, where the GPU shares the machine's memory."""
    groups: dict[tuple[str, str], list[_Share]] = {}
    for process in among:
        if process.kernel or process.dead:
            continue
        try:
            status = read_status(files, process.pid)
            gpu = gpu_bytes.get(process.pid, 0)
            share = _Share(process.pid, status.anonymous_bytes, status.shared_bytes, gpu)
            if share.bytes >= SMALLEST_BYTES:
                group = _group(files.text(f"/proc/{process.pid}/cgroup", limit=65536), process)
                groups.setdefault(group, []).append(share)
        except _UNREADABLE:
            continue
    found = [_tenant(files, kind, name, shares) for (kind, name), shares in groups.items()]
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
            # What lies below a unit is its own affair, but for a user's manager, which has units of its own.
            of_user = len(parts) > 1 and _USER_MANAGER.fullmatch(parts[0]) is not None
            return "user-unit" if of_user else "unit", sanitize(parts[of_user], 120)
    return "process", f"pid {process.pid} ({process.comm})"


def _tenant(files: Files, kind: str, name: str, shares: list[_Share]) -> Tenant:
    largest = max(shares, key=lambda share: share.bytes)
    # Shared memory is mapped by several of them: the largest share of one stands for all.
    shared = max(share.shared_bytes for share in shares)
    total = shared + sum(share.anonymous_bytes + share.gpu_bytes for share in shares)
    return Tenant(name, kind, _user(files, largest.pid), largest.pid, len(shares), total)


def _user(files: Files, pid: int) -> str:
    from sparkd.host import os_stats

    try:
        return users.name(files, os_stats.effective_uid(files, pid))
    except (OSError, ValueError):  # it has ended since its memory was counted
        return "?"
