"""Who took the memory that a killed engine was to have: the growth of this node's other tenants since the launch."""

from __future__ import annotations

from collections import Counter

from msgspec import Struct

from sparkd.agent.preflight.checks.memory_users import find_consumers
from sparkd.base.host import Host
from sparkd.base.host.gpu import NO_GPU
from sparkd.base.host.meminfo import Consumer
from sparkd.base.lib.text import MIB, size

LEAST_BYTES = 256 * MIB
"""Smaller growth is noise."""
SHOWN = 3


class Tenants(Struct, frozen=True):
    held_bytes: int
    """By the kernel's count, with no owner: anonymous memory, shared memory and files in tmpfs."""
    gpu_bytes: int = 0
    """Of it the driver's, by its own count."""
    named: tuple[Consumer, ...] = ()
    """Empty where that took too long."""


def name_tenants(host: Host, rank: str) -> tuple[int, tuple[Consumer, ...]]:
    """The GPU's memory, and who holds memory, but the container with the id `rank`: also users by their files in
    /dev/shm, which hold it with no process. Root's may be the engine's. Raises OSError, ValueError."""
    gpu = host.gpu() if host.gpu_present() else NO_GPU
    used = sum(one.used_bytes or 0 for one in gpu.processes or ()) if gpu.total_bytes is None else 0
    held: Counter[int] = Counter()
    for one in host.segments():
        held[one.uid] += one.allocated_bytes
    files = (Consumer("files in /dev/shm", "files", host.user(uid), 0, 0, held[uid]) for uid in held if uid)
    return used, (*(one for one in find_consumers(host, gpu) if one.name != rank), *files)


def describe_growth(before: Tenants, now: Tenants, spare_bytes: int) -> tuple[str, bool]:
    """Who took memory, and whether others took more than `spare_bytes`, which were left beside the plan at the launch
    (`before`). Else the engine was larger than its plan. `now`: when nothing of the engine is left."""
    known = bool(before.named and now.named)
    taken = now.held_bytes - before.held_bytes + (now.gpu_bytes - before.gpu_bytes if known else 0)
    then = {(one.kind, one.name, one.user): one.bytes for one in before.named}
    grown = [(one.bytes - then.get((one.kind, one.name, one.user), 0), one) for one in now.named if known]
    # A file that a process has mapped is in both: in the files of a user whose process grew as much.
    most = sorted(grown, key=lambda entry: (-entry[0], entry[1].kind == "files"))[:SHOWN]
    named = ", ".join(f"{one.user} {size(more)} ({_place(one)})" for more, one in most if more > LEAST_BYTES)
    if taken > max(spare_bytes, LEAST_BYTES):
        return f"others took {size(taken)} since the launch: {named or 'no process has it mapped'}", True
    little = f"only {size(max(0, taken))} since the launch{f' ({named})' * bool(named)}"
    return f"the engine itself grew beyond its plan: others took {little}", False


def _place(one: Consumer) -> str:
    if one.kind == "container":
        return f"container {one.name[:12]}, pid {one.pid}"
    return f"{one.name}, pid {one.pid}" if one.kind.endswith("unit") else one.name
