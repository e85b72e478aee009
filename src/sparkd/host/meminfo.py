"""/proc/meminfo, in bytes."""

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
    anonymous_bytes: int = 0
    mapped_bytes: int = 0
    shared_bytes: int = 0
    """tmpfs and shared memory: counted in Cached too, and not to be dropped."""
    dirty_bytes: int = 0
    """Dirty and under writeback."""
    slab_reclaimable_bytes: int = 0
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
            + self.slab_reclaimable_bytes
            + self.slab_unreclaimable_bytes
            + self.kernel_bytes
        )
        return max(0, self.total_bytes - known)


def read(files: Files) -> MemInfo:
    """Raises OSError, and ValueError where the three figures that decide are missing."""
    kib = dict(_entries(files.text("/proc/meminfo", limit=65536)))
    for key in ("MemTotal", "MemFree", "MemAvailable"):
        if key not in kib:
            raise ValueError(f"/proc/meminfo has no {key}")

    def sum_of(*keys: str) -> int:
        return sum(kib.get(key, 0) for key in keys) * 1024

    return MemInfo(
        total_bytes=sum_of("MemTotal"),
        free_bytes=sum_of("MemFree"),
        available_bytes=sum_of("MemAvailable"),
        buffers_bytes=sum_of("Buffers"),
        cached_bytes=sum_of("Cached"),
        anonymous_bytes=sum_of("AnonPages"),
        mapped_bytes=sum_of("Mapped"),
        shared_bytes=sum_of("Shmem"),
        dirty_bytes=sum_of("Dirty", "Writeback"),
        slab_reclaimable_bytes=sum_of("SReclaimable"),
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
