"""Makes room for the GPU's driver: drops the page cache, or one file's, and compacts free memory."""

import ctypes
import math
import mmap
import os
from collections.abc import Callable
from pathlib import Path
from time import monotonic

from sparkd.agent.preflight.fixes import Applied, CompactMemory
from sparkd.base.host import Host
from sparkd.base.host.files import open_file
from sparkd.base.host.shm import File
from sparkd.base.lib.text import size

DROP_CACHES = "/proc/sys/vm/drop_caches"
COMPACT_MEMORY = "/proc/sys/vm/compact_memory"
PIECE_BYTES = 256 << 20
"""1 to 6 ms of work. A multiple of every folio's size: the kernel keeps a folio of which a piece has only a part."""
_CACHESTAT = 451
"""The call's number in Linux 6.5 and later, the same on x86-64 and arm64. 0.1 ms for a GiB."""


def drop_page_cache(host: Host, deadline: float = math.inf) -> Applied:
    """May block for as long as the disks take. The note says what MemFree gained.

    Nothing is dropped where sync ends after `deadline`, of the monotonic clock: the start has gone on, and profiling
    fails if free memory grows.
    """
    before = host.meminfo().free_bytes
    os.sync()
    if monotonic() >= deadline:
        return Applied("failed", "nothing is dropped: sync took too long")
    try:
        Path(host.files.real(DROP_CACHES)).write_text("3\n", encoding="ascii")
    except OSError as error:
        return Applied("failed", f"{DROP_CACHES}: {error.strerror}")
    gained = host.meminfo().free_bytes - before
    return Applied("applied", f"{max(0, gained) / (1 << 30):.1f} GiB freed")


def compact_memory(host: Host, fix: CompactMemory) -> Applied:
    """Blocks for 2 us for each page that moves, 10 s for 20 GiB of them (measured on x86-64, Linux 6.18).

    The note says what large blocks gained. Raises OSError, ValueError where free memory cannot be read.
    """
    before = host.free_memory().large_bytes
    if before >= fix.wanted_bytes:
        return Applied("stale", f"{size(before)} is free in large blocks")
    try:
        Path(host.files.real(COMPACT_MEMORY)).write_text("1\n", encoding="ascii")
    except OSError as error:
        return Applied("failed", f"{COMPACT_MEMORY}: {error.strerror}")
    return Applied("applied", f"{size(before)} free in large blocks before, {size(host.free_memory().large_bytes)} now")


def drop_file_cache(host: Host, shard: File, should_continue: Callable[[], bool]) -> int:
    """Drop the clean, unmapped pages of this one file while `should_continue` holds. Raises OSError.

    Returns the bytes that were freed; 0 where the path is another file now. Where the kernel has no cachestat(2), the
    result is by how much the whole page cache shrank: other programs change it too, but little in milliseconds.
    """
    fd = open_file(shard.path)

    def cached() -> int:
        exact = cached_bytes(fd)
        return host.meminfo().cached_bytes if exact is None else exact

    try:
        status = os.fstat(fd)
        before = cached() if (status.st_dev, status.st_ino) == shard.identity else 0
        if before == 0:
            return 0
        for offset in range(0, status.st_size, PIECE_BYTES):
            if not should_continue():
                break
            os.posix_fadvise(fd, offset, PIECE_BYTES, os.POSIX_FADV_DONTNEED)
        return max(0, before - cached())
    finally:
        os.close(fd)


def cached_bytes(fd: int) -> int | None:
    """Bytes of the file in the page cache; None where cachestat(2) is missing, or denied by the unit's filter."""
    whole = (ctypes.c_uint64 * 2)()  # offset, length
    counts = (ctypes.c_uint64 * 5)()  # pages cached, dirty, in writeback, evicted, recently evicted
    failed = ctypes.CDLL(None).syscall(ctypes.c_long(_CACHESTAT), ctypes.c_int(fd), whole, counts, ctypes.c_uint(0))
    return None if failed else counts[0] * mmap.PAGESIZE
