"""Who took the memory that a killed engine should have had: how this node's other tenants grew since the launch.

A tenant is a process, container, unit or user that holds memory and is no part of the rank.
"""

from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from functools import partial
from typing import NamedTuple

from msgspec import Struct

from sparkd.agent.preflight.checks.memory_users import find_consumers
from sparkd.agent.preflight.fixes import UnlinkSegment
from sparkd.base.host import Host, cgroups, shm
from sparkd.base.host.consumers import Consumer
from sparkd.base.host.gpu import NO_GPU
from sparkd.base.lib.main_loop import MainLoop
from sparkd.base.lib.text import MIB, size

LEAST_BYTES = 256 * MIB
"""Smaller growth is noise."""
SCAN_SECONDS = 2.0
"""Limit for a scan of all processes (0.5 s for ten thousand), for which the other nodes wait to learn the cause."""


class Tenants(Struct, frozen=True):
    """Memory that others than the rank held at one moment."""

    held_bytes: int
    """Anonymous memory, shared memory and files in tmpfs, by the kernel's count, which names no owner."""
    gpu_bytes: int = 0
    """Memory of the GPU's driver, by its own count."""
    named: tuple[Consumer, ...] = ()
    """Who holds it; empty where finding that out took too long."""
    charged_bytes: int | None = None
    """Buffers of sockets and pipes, as `cgroups.read_charged_bytes`; None where unknown."""


def read_tenants(host: Host, loop: MainLoop, rank: str, segments: Iterable[UnlinkSegment]) -> Tenants | None:
    """Who holds memory now, except the container `rank` and its segments, which outlive it. None where unknown."""
    gpu_bytes, named, charged_bytes = 0, tuple[Consumer, ...](), None
    with suppress(OSError, ValueError):
        memory = host.meminfo()
        held_bytes = memory.anonymous_bytes + memory.shared_bytes
        for segment in segments:
            left = shm.read_segment(host.files, segment.path.rpartition("/")[2], 0)
            held_bytes -= left.allocated_bytes if left and left.identity == (segment.device, segment.inode) else 0
        with suppress(OSError, ValueError):
            scan = partial(scan_tenants, host, rank)
            gpu_bytes, named = loop.beside(scan, SCAN_SECONDS, "looking at other tenants", shielded=True)
        with suppress(OSError):
            look = partial(cgroups.read_charged_bytes, host.files)
            charged_bytes = loop.beside(look, 0.5, "looking at control groups", shielded=True)
        return Tenants(held_bytes, gpu_bytes, named, charged_bytes)
    return None


def scan_tenants(host: Host, rank: str) -> tuple[int, tuple[Consumer, ...]]:
    """Bytes of shared memory that the GPU's driver holds, and all consumers of memory except the container `rank`.

    Files in /dev/shm count for their owner, since there may be no process that maps them; root's are left out, as they
    may be the engine's. Raises OSError, ValueError.
    """
    gpu = host.gpu() if host.gpu_present() else NO_GPU
    gpu_bytes = sum(process.used_bytes or 0 for process in gpu.processes or ()) if gpu.total_bytes is None else 0
    segment_bytes: Counter[int] = Counter()
    for segment in host.segments():
        segment_bytes[segment.uid] += segment.allocated_bytes
    files = (
        Consumer("files in /dev/shm", "files", host.user(uid), 0, 0, segment_bytes[uid]) for uid in segment_bytes if uid
    )
    return gpu_bytes, (*(consumer for consumer in find_consumers(host, gpu) if consumer.name != rank), *files)


class Growth(NamedTuple):
    text: str
    """Who took memory; empty where that is not known."""
    by_others: bool
    """Whether others took more than the plan left at the launch."""


def describe_growth(at_launch: Tenants, at_end: Tenants, spare_bytes: int) -> Growth:
    """Compare the memory at the launch with that at the end, when nothing of the engine is left.

    `spare_bytes` were left beside the plan. Where others took no more, the engine was larger than its plan.
    """
    both_known = bool(at_launch.named and at_end.named)
    taken_bytes = at_end.held_bytes - at_launch.held_bytes
    if both_known:
        taken_bytes += at_end.gpu_bytes - at_launch.gpu_bytes
    if at_end.charged_bytes is not None and at_launch.charged_bytes is not None:
        taken_bytes += at_end.charged_bytes - at_launch.charged_bytes
    bytes_before = {_identify(consumer): consumer.bytes for consumer in at_launch.named}
    growths = [
        (consumer.bytes - bytes_before.get(_identify(consumer), 0), consumer) for consumer in at_end.named if both_known
    ]
    # A mapped file of /dev/shm counts twice: for the process and as a file of its user. The process comes first.
    growths.sort(key=lambda growth: (-growth[0], growth[1].kind == "files"))
    names = ", ".join(
        f"{consumer.user} {size(grown_bytes)} ({_describe_place(consumer)})"
        for grown_bytes, consumer in growths[:3]
        if grown_bytes > LEAST_BYTES
    )
    if taken_bytes > max(spare_bytes, LEAST_BYTES):
        return Growth(f"others took {size(taken_bytes)} since the launch: {names or 'no process has it mapped'}", True)
    reason = f"the engine itself grew beyond its plan: others took only {size(max(0, taken_bytes))} since the launch"
    return Growth(f"{reason} ({names})" if names else reason, False)


def _identify(consumer: Consumer) -> tuple[str, str, str]:
    return consumer.kind, consumer.name, consumer.user


def _describe_place(consumer: Consumer) -> str:
    if consumer.kind == "container":
        return f"container {consumer.name[:12]}, pid {consumer.pid}"
    return f"{consumer.name}, pid {consumer.pid}" if consumer.kind.endswith("unit") else consumer.name
