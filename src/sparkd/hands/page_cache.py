"""Give page cache back: all of it, synced first since dirty pages can't be dropped, or that of one file."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from sparkd.hands.applied import Applied
from sparkd.host import Host, page_cache
from sparkd.host.shards import Shard

DROP_CACHES = "/proc/sys/vm/drop_caches"
PIECE_BYTES = 256 << 20
"""1 to 6 ms of work. A multiple of every folio's size: none lies across a border, to be kept for that."""


def drop(host: Host) -> Applied:
    """May block for as long as the disks take. The note says what MemFree gained."""
    before = host.meminfo().free_bytes
    os.sync()
    try:
        Path(DROP_CACHES).write_text("3\n", encoding="ascii")
    except OSError as error:
        return Applied("failed", f"{DROP_CACHES}: {error.strerror}")
    gained = host.meminfo().free_bytes - before
    return Applied("applied", f"{max(0, gained) / (1 << 30):.1f} GiB freed")


def give_back(host: Host, shard: Shard, still: Callable[[], bool]) -> int:
    """Drop the clean, unmapped pages of this one file, for as long as `still`. Raises OSError.

    Gives how many bytes came back; 0 where it is another file by now.
    """
    fd = os.open(shard.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
    try:
        found = os.fstat(fd)
        if (found.st_dev, found.st_ino) != shard.identity:
            return 0
        before = _cached_bytes(host, fd)
        if before == 0:
            return 0
        for offset in range(0, found.st_size, PIECE_BYTES):
            if not still():
                break
            os.posix_fadvise(fd, offset, PIECE_BYTES, os.POSIX_FADV_DONTNEED)
        return max(0, before - _cached_bytes(host, fd))
    finally:
        os.close(fd)


def _cached_bytes(host: Host, fd: int) -> int:
    """Of the file; of all files where that can't be told, which others change too, but not much in milliseconds."""
    exact = page_cache.cached_bytes(fd)
    return host.meminfo().cached_bytes if exact is None else exact
