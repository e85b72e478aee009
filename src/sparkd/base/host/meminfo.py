"""The machine's memory in bytes, as the kernel counts it: its use, free blocks, swap, OOM kills.

psutil reads /proc/meminfo; the lines that it leaves out are read here.
"""

import mmap
import re
from collections.abc import Mapping
from functools import partial

from msgspec import Struct

from sparkd.base.host import cgroups
from sparkd.base.host.disks import unescape
from sparkd.base.host.files import Files
from sparkd.base.lib.text import sanitize

_OTHER_COUNTERS = ("SUnreclaim", "KernelStack", "PageTables", "SecPageTables", "VmallocUsed", "Percpu", "Hugetlb",
                   "Balloon", "Bounce", "WritebackTmp")  # fmt: skip
"""Lines of /proc/meminfo for memory in use that is neither cache nor a process's."""
_LINE = re.compile(r"^([^:\n]+):[ \t]*(\d{1,18})(?!\S)", re.MULTILINE)
_ZONE = re.compile(r"Node +\d+, +zone +(?P<name>\S+)(?P<counts>(?: +\d+)+) *")


class MemInfo(Struct, frozen=True):
    """The kernel's counters. One that an older kernel or lxcfs leaves out is 0.

    Free, buffers, cached, anonymous and other counted memory do not overlap.
    """

    total_bytes: int
    free_bytes: int
    available_bytes: int
    """The kernel's estimate of what programs can get without swapping: free memory and droppable caches."""
    buffers_bytes: int = 0
    cached_bytes: int = 0
    """Page cache, shared memory, and slab that is reclaimable."""
    anonymous_bytes: int = 0
    """Mapped by processes, and of no file."""
    mapped_bytes: int = 0
    """Pages of files that processes map."""
    shared_bytes: int = 0
    """tmpfs and shared memory: in `cached_bytes` too, but not droppable."""
    dirty_bytes: int = 0
    """Not written to its disk yet."""
    other_counted_bytes: int = 0
    """Slab that is not reclaimable, kernel stacks, page tables, vmalloc, reserved huge pages, balloon memory,
    compressed swap (zram, zswap), and pages of processes that none of them maps: in the swap cache, or in a pipe."""
    huge_pages_bytes: int = 0
    """Reserved as huge pages, used or not."""
    cma_used_bytes: int = 0
    """Taken from the contiguous area, by drivers or by memory in other counters."""
    cma_excess_bytes: int = 0
    """Free beyond the contiguous area's size: the kernel counts memory that kexec handover reserves so."""

    @property
    def unaccounted_bytes(self) -> int:
        """Memory in none of these counters.

        `read_unexplained_bytes` subtracts what other sources have of it: the rest, on GB10, is the GPU driver's.
        """
        counted_bytes = self.buffers_bytes + self.cached_bytes + self.anonymous_bytes + self.other_counted_bytes
        return max(0, self.total_bytes - self.free_bytes - counted_bytes)


LARGE_BLOCK_BYTES = 2 << 20
"""Order 9 of pages of 4 KiB, order 5 of pages of 64 KiB. Without such blocks GB10's driver fails with NV_ERR_NO_MEMORY
(docs/GB10-UNIFIED-MEMORY-FIELD-REPORT.md of tonyd2wild/GLM-5.3-Flash-NVFP4-DFlash2-2x-DGX-Spark, September 2026)."""


class FreeMemory(Struct, frozen=True):
    """Free memory by the kernel's allocator, which merges free pages into blocks of powers of two."""

    bytes: int
    """Free in blocks of any size. MemFree counts also what a hypervisor has taken back."""
    large_bytes: int
    """Free in blocks of LARGE_BLOCK_BYTES or more that a driver can get."""
    unlisted_bytes: int = 0
    """Free by MemFree, and in no block: as in a kernel that initialises memory late (deferred_init=lazy)."""

    @property
    def is_listed(self) -> bool:
        """Whether at least a quarter of the free memory is in blocks, so that they say something of the whole.

        Not all of it ever is: hypervisors and caches of free pages hold some back.
        """
        return self.unlisted_bytes <= 3 * self.bytes

    @property
    def scattered_bytes(self) -> int:
        """Free in blocks that are too small, or that a driver can't get."""
        return self.bytes - self.large_bytes


class Swap(Struct, frozen=True):
    """An active swap area: a file or a device."""

    path: str
    bytes: int
    used_bytes: int

    @property
    def in_memory(self) -> bool:
        """zram: compressed, in the same memory."""
        return self.path.startswith("/dev/zram")


def read_meminfo(files: Files, page_bytes: int = mmap.PAGESIZE) -> MemInfo:
    """The kernel's counters. Raises OSError, and ValueError where one of the three main ones is missing."""
    from sparkd.base.host import os_stats

    counters = _read_counters(files)
    for key in ("MemTotal", "MemFree", "MemAvailable"):
        if key not in counters:
            raise ValueError(f"/proc/meminfo has no {key}")
    memory, sum_of = os_stats.memory(files), partial(_sum_of, counters)
    # zram is in no line of /proc/meminfo. zswap may have an allocator of its own instead (zbud, before Linux 6.15).
    compressed_bytes = max((_read_vmstat(files, "nr_zspages") or 0) * page_bytes, sum_of("Zswap"))
    return MemInfo(
        total_bytes=memory.total,
        free_bytes=memory.free,
        # The kernel's own: psutil replaces 0, and more than the total, by an estimate.
        available_bytes=sum_of("MemAvailable"),
        buffers_bytes=memory.buffers,
        cached_bytes=memory.cached,
        anonymous_bytes=sum_of("AnonPages"),
        mapped_bytes=sum_of("Mapped"),
        shared_bytes=memory.shared,
        dirty_bytes=sum_of("Dirty", "Writeback"),
        other_counted_bytes=sum_of(*_OTHER_COUNTERS) + compressed_bytes + _estimate_unmapped(counters),
        huge_pages_bytes=sum_of("Hugetlb"),
        cma_used_bytes=max(0, sum_of("CmaTotal") - sum_of("CmaFree")),
        cma_excess_bytes=max(0, sum_of("CmaFree") - sum_of("CmaTotal")),
    )


def read_free_memory(files: Files, page_bytes: int = mmap.PAGESIZE) -> FreeMemory:
    """Sums over every zone of every node, in 9 us. Raises OSError, and ValueError for another format."""
    free_bytes = large_bytes = 0
    least_order = (LARGE_BLOCK_BYTES // page_bytes - 1).bit_length()
    for line in files.text("/proc/buddyinfo", limit=65536).splitlines():
        zone = _ZONE.fullmatch(line)
        if zone is None:
            raise ValueError(f"/proc/buddyinfo has another format: {sanitize(line, 80)!r}")
        sizes = [int(count) * (page_bytes << order) for order, count in enumerate(zone["counts"].split())]
        free_bytes += sum(sizes)
        # A driver's pages do not move: it gets none in this zone, nor in the contiguous area below.
        large_bytes += sum(sizes[least_order:]) if zone["name"] != "Movable" else 0
    if not free_bytes:
        raise ValueError("/proc/buddyinfo is empty")
    counters = _read_counters(files)
    unlisted_bytes = max(0, _sum_of(counters, "MemFree") - free_bytes)
    return FreeMemory(free_bytes, max(0, large_bytes - _sum_of(counters, "CmaFree")), unlisted_bytes)


def _read_counters(files: Files) -> dict[str, int]:
    """The lines of /proc/meminfo: bytes by name. Raises OSError."""
    lines = _LINE.findall(files.text("/proc/meminfo", limit=65536))
    return {name.strip(): int(kib) * 1024 for name, kib in lines}


def _sum_of(counters: Mapping[str, int], *names: str) -> int:
    """Bytes of all `names`; a line that the kernel leaves out counts 0."""
    return sum(counters.get(name, 0) for name in names)


def _estimate_unmapped(counters: Mapping[str, int]) -> int:
    """Bytes of pages on the kernel's lists that no process maps and no other counter has.

    They are in the swap cache, or were given to a pipe, a socket or the network card, and unmapped. `Unevictable` has
    locked pages, also those of files, which Cached has and the lists of files do not.
    """
    sum_of = partial(_sum_of, counters)
    lists_bytes = sum_of("Active(anon)", "Inactive(anon)", "Unevictable")
    locked_files_bytes = sum_of("Cached", "Buffers") - sum_of("Shmem", "Active(file)", "Inactive(file)")
    return max(0, lists_bytes - sum_of("AnonPages", "Shmem") - max(0, locked_files_bytes))


def read_unexplained_bytes(files: Files, info: MemInfo) -> int:
    """The memory of `info.unaccounted_bytes` that no other source explains either.

    These sources are the cache of ZFS, the contiguous area, and what is charged to control groups. Raises OSError.
    """
    elsewhere_bytes = info.cma_used_bytes + _read_zfs_cache(files) + (cgroups.read_charged_bytes(files) or 0)
    return max(0, info.unaccounted_bytes - elsewhere_bytes)


def _read_zfs_cache(files: Files) -> int:
    """The ARC of ZFS, which /proc/meminfo does not count; 0 without ZFS."""
    stats = files.text_if_any("/proc/spl/kstat/zfs/arcstats", limit=65536) or ""
    match = re.search(r"^size\s+\d+\s+(\d+)$", stats, re.MULTILINE)
    return int(match[1]) if match else 0


def read_swaps(files: Files) -> tuple[Swap, ...]:
    """Active swap areas; none in a kernel without swap. Raises OSError, and ValueError for another format."""
    areas = []
    for line in (files.text_if_any("/proc/swaps", limit=65536) or "").splitlines()[1:]:
        try:
            path, _kind, kib, used_kib, _priority = line.split()
            areas.append(Swap(sanitize(unescape(path), 256), int(kib) * 1024, int(used_kib) * 1024))
        except ValueError:
            raise ValueError(f"/proc/swaps has another format: {sanitize(line, 80)!r}") from None
    return tuple(areas)


def read_oom_kill_count(files: Files) -> int | None:
    """OOM kills since boot; None where the kernel does not count them, or that is unreadable."""
    try:
        return _read_vmstat(files, "oom_kill")
    except OSError:
        return None


def _read_vmstat(files: Files, name: str) -> int | None:
    """A counter of /proc/vmstat; None where the kernel has none of this name. Raises OSError."""
    counters = files.text_if_any("/proc/vmstat", limit=1 << 20) or ""
    match = re.search(rf"^{name} (\d+)$", counters, re.MULTILINE | re.ASCII)
    return int(match[1]) if match else None
