"""Who took the memory that a killed engine was to have: the growth of this node's other tenants since the launch."""

from __future__ import annotations

from collections import Counter

from sparkd.host import Host
from sparkd.host.gpu import NO_GPU
from sparkd.host.meminfo import Consumer
from sparkd.lib.text import MIB, size
from sparkd.preflight.checks.memory_users import find_consumers

LEAST_BYTES = 256 * MIB
"""Smaller growth is noise."""
SHOWN = 3


def read_tenants(host: Host, rank: str) -> tuple[Consumer, ...]:
    """All who hold memory, but the container with the id `rank`: also users by their files in /dev/shm, which hold it
    with no process. Root's are the engine's. Raises OSError, ValueError."""
    gpu = host.gpu() if host.gpu_present() else NO_GPU
    held: Counter[int] = Counter()
    for one in host.segments():
        held[one.uid] += one.allocated_bytes
    files = (Consumer("files in /dev/shm", "files", host.user(uid), 0, 0, held[uid]) for uid in held if uid)
    return (*(one for one in find_consumers(host, gpu) if one.name != rank), *files)


def describe_growth(before: tuple[Consumer, ...], now: tuple[Consumer, ...], spare_bytes: int) -> str:
    """`before`: at the launch, when the plan fitted, and `spare_bytes` beside it. Empty where others took less of it:
    then the engine was larger than its plan."""
    taken = sum(one.bytes for one in now) - sum(one.bytes for one in before)
    if taken <= max(spare_bytes, LEAST_BYTES):
        return ""
    then = {(one.kind, one.name, one.user): one.bytes for one in before}
    grown = [(one.bytes - then.get((one.kind, one.name, one.user), 0), one) for one in now]
    most = sorted(grown, key=lambda entry: -entry[0])[:SHOWN]
    named = (f"{one.user} {size(more)} ({_place(one)})" for more, one in most if more > LEAST_BYTES)
    return f"others took {size(taken)} since the launch: {', '.join(named)}"


def _place(one: Consumer) -> str:
    if one.kind == "container":
        return f"container {one.name[:12]}, pid {one.pid}"
    return f"{one.name}, pid {one.pid}" if one.kind.endswith("unit") else one.name
