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
    """Anonymous memory, shared memory and files in tmpfs, by the kernel's count, with no owner."""
    gpu_bytes: int = 0
    """The driver's part of it, by its own count."""
    named: tuple[Consumer, ...] = ()
    """Empty where that took too long."""


def name_tenants(host: Host, rank: str) -> tuple[int, tuple[Consumer, ...]]:
    """The GPU's memory, and who holds memory, but the container with the id `rank`: also users by their files in
    /dev/shm, which hold it with no process. Root's may be the engine's. Raises OSError, ValueError."""
    gpu = host.gpu() if host.gpu_present() else NO_GPU
    used = sum(process.used_bytes or 0 for process in gpu.processes or ()) if gpu.total_bytes is None else 0
    held: Counter[int] = Counter()
    for segment in host.segments():
        held[segment.uid] += segment.allocated_bytes
    files = (Consumer("files in /dev/shm", "files", host.user(uid), 0, 0, held[uid]) for uid in held if uid)
    return used, (*(consumer for consumer in find_consumers(host, gpu) if consumer.name != rank), *files)


def describe_growth(before: Tenants, now: Tenants, spare_bytes: int) -> tuple[str, bool]:
    """Who took memory, and whether others took more than `spare_bytes`, which were left beside the plan at the launch
    (`before`). Else the engine was larger than its plan. `now`: when nothing of the engine is left."""
    known = bool(before.named and now.named)
    taken = now.held_bytes - before.held_bytes + (now.gpu_bytes - before.gpu_bytes if known else 0)
    then = {_identity(consumer): consumer.bytes for consumer in before.named}
    grown = [(consumer.bytes - then.get(_identity(consumer), 0), consumer) for consumer in now.named if known]
    # A file that a process has mapped is in both: in the files of a user whose process grew as much.
    most = sorted(grown, key=lambda growth: (-growth[0], growth[1].kind == "files"))[:SHOWN]
    named = ", ".join(
        f"{consumer.user} {size(more)} ({_place(consumer)})" for more, consumer in most if more > LEAST_BYTES
    )
    if taken > max(spare_bytes, LEAST_BYTES):
        return f"others took {size(taken)} since the launch: {named or 'no process has it mapped'}", True
    little = f"only {size(max(0, taken))} since the launch{f' ({named})' * bool(named)}"
    return f"the engine itself grew beyond its plan: others took {little}", False


def _identity(consumer: Consumer) -> tuple[str, str, str]:
    return consumer.kind, consumer.name, consumer.user


def _place(consumer: Consumer) -> str:
    if consumer.kind == "container":
        return f"container {consumer.name[:12]}, pid {consumer.pid}"
    return f"{consumer.name}, pid {consumer.pid}" if consumer.kind.endswith("unit") else consumer.name
