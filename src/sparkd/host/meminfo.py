"""The machine's memory, in bytes: what psutil says of it, and the lines of /proc/meminfo that it has no word for."""

from __future__ import annotations

from msgspec import Struct

from sparkd.host.files import Files

_KERNEL = (
    *("KernelStack", "PageTables", "SecPageTables", "VmallocUsed", "Percpu", "Hugetlb"),
    *("Zswap", "Balloon", "Bounce", "WritebackTmp"),
)


class MemInfo(Struct, frozen=True):
    """The kernel's own figures. A figure that an older kernel or lxcfs leaves out is 0."""

    total_bytes: int
    free_bytes: int
    available_bytes: int
    buffers_bytes: int = 0
    cached_bytes: int = 0
    """Page cache, and slab memory that the kernel would give back."""
    anonymous_bytes: int = 0
    mapped_bytes: int = 0
    shared_bytes: int = 0
    """tmpfs and shared memory: counted in Cached too, and not to be dropped."""
    dirty_bytes: int = 0
    """Dirty and under writeback."""
    slab_unreclaimable_bytes: int = 0
    kernel_bytes: int = 0
    """Kernel stacks, page tables, vmalloc, huge pages set apart, compressed swap, and what a balloon gave back."""
    huge_pages_bytes: int = 0
    """Set apart as huge pages, used or not."""
    cma_used_bytes: int = 0
    """Taken from the contiguous area, by drivers or by what the other counters count too."""
    cma_excess_bytes: int = 0
    """Free in the contiguous area beyond all that it has: memory that kexec handover keeps back is counted so."""

    @property
    def unaccounted_bytes(self) -> int:
        """Memory that no counter explains: on GB10, what the GPU's driver took."""
        known = (
            self.free_bytes
            + self.buffers_bytes
            + self.cached_bytes
            + self.anonymous_bytes
            + self.slab_unreclaimable_bytes
            + self.kernel_bytes
        )
        return max(0, self.total_bytes - known)


def read(files: Files) -> MemInfo:
    """Raises OSError, and ValueError where the three figures that decide are missing."""
    from sparkd.host import os_stats

    kib = dict(_entries(files.text("/proc/meminfo", limit=65536)))
    for key in ("MemTotal", "MemFree", "MemAvailable"):
        if key not in kib:
            raise ValueError(f"/proc/meminfo has no {key}")

    def sum_of(*keys: str) -> int:
        return sum(kib.get(key, 0) for key in keys) * 1024

    memory = os_stats.memory(files)
    return MemInfo(
        total_bytes=memory.total,
        free_bytes=memory.free,
        # The kernel's own, be it 0 or more than there is: psutil puts an estimate in its place.
        available_bytes=sum_of("MemAvailable"),
        buffers_bytes=memory.buffers,
        cached_bytes=memory.cached,
        anonymous_bytes=sum_of("AnonPages"),
        mapped_bytes=sum_of("Mapped"),
        shared_bytes=memory.shared,
        dirty_bytes=sum_of("Dirty", "Writeback"),
        slab_unreclaimable_bytes=sum_of("SUnreclaim"),
        kernel_bytes=sum_of(*_KERNEL),
        huge_pages_bytes=sum_of("Hugetlb"),
        cma_used_bytes=max(0, sum_of("CmaTotal") - sum_of("CmaFree")),
        cma_excess_bytes=max(0, sum_of("CmaFree") - sum_of("CmaTotal")),
    )


def zfs_cache_bytes(files: Files) -> int:
    """The ARC of ZFS, which no counter of /proc/meminfo knows; 0 where there is no ZFS."""
    try:
        rows = [line.split() for line in files.text("/proc/spl/kstat/zfs/arcstats", limit=65536).splitlines()]
    except (FileNotFoundError, NotADirectoryError):
        return 0
    return next((int(row[2]) for row in rows if len(row) == 3 and row[0] == "size" and row[2].isdigit()), 0)


def _entries(text: str) -> list[tuple[str, int]]:
    found = []
    for line in text.splitlines():
        key, _, rest = line.partition(":")
        words = rest.split()
        if words and words[0].isdigit():
            found.append((key.strip(), int(words[0])))
    return found
