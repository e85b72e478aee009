"""Scatters free memory, lets sparkd's guard of a load look at it once, and prints one line of JSON.

fragmenter.py SHARE KEPT: of that share of the available memory every KEPT-th page stays in use.
"""

from __future__ import annotations

import json
import mmap
import re
import sys
import time
from functools import partial
from pathlib import Path

sys.path[:0] = ["/usr/lib/sparkd/app", "/usr/lib/sparkd/vendor"]
from sparkd.agent.actions import page_cache  # noqa: E402  # only here can it be found
from sparkd.agent.engine.contiguous_memory import ContiguousMemory  # noqa: E402
from sparkd.base.host import Host  # noqa: E402
from sparkd.base.host.meminfo import FreeMemory  # noqa: E402

SETTLE_SECONDS, KEPT_BYTES = 40, 16 << 20


class Heard:
    """What the guard says."""

    def __init__(self) -> None:
        self.events: list[str] = []

    def info(self, event: str, **fields: object) -> None:
        self.events.append(" ".join((event, *(f"{key}={value}" for key, value in fields.items()))))

    warning = info
    error = info


def scatter(size_bytes: int, kept: int) -> mmap.mmap:
    """Memory of so many bytes, of which every so-manieth page is in use; the others are free between them."""
    memory = mmap.mmap(-1, size_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory.madvise(mmap.MADV_NOHUGEPAGE)
    for offset in range(0, size_bytes, mmap.PAGESIZE):
        memory[offset] = 1
    stride = kept * mmap.PAGESIZE
    for offset in range(0, size_bytes - stride, stride):
        memory.madvise(mmap.MADV_DONTNEED, offset, stride - mmap.PAGESIZE)
    return memory


def kept_by_processors() -> int:
    """Bytes that were freed and that the kernel has not merged yet: up to an eighth of the memory."""
    counts = re.findall(r"^ +count: +(\d+)$", Path("/proc/zoneinfo").read_text(), re.MULTILINE)
    return sum(map(int, counts)) * mmap.PAGESIZE


def settle() -> None:
    """Wait until they are merged: an eighth of them each second."""
    deadline = time.monotonic() + SETTLE_SECONDS
    while kept_by_processors() > KEPT_BYTES and time.monotonic() < deadline:
        time.sleep(1)


def kernels_free_bytes() -> int:
    """Of all zones, by another table of the kernel's than sparkd reads."""
    pages = re.findall(r"^ *nr_free_pages +(\d+)$", Path("/proc/zoneinfo").read_text(), re.MULTILINE)
    return sum(map(int, pages)) * mmap.PAGESIZE


def sizes(free: FreeMemory) -> tuple[int, int]:
    return free.bytes, free.large_bytes


def main() -> None:
    share, kept = float(sys.argv[1]), int(sys.argv[2])
    host, heard = Host(), Heard()
    at_first = host.free_memory()
    memory = scatter(int(host.meminfo().available_bytes * share) >> 21 << 21, kept)
    settle()
    scattered, by_zones, mem_free = host.free_memory(), kernels_free_bytes(), host.meminfo().free_bytes
    guard = ContiguousMemory(host, at_first.large_bytes, partial(page_cache.compact_memory, host), heard)
    guard.keep(lambda: None)
    settle()
    compacted = host.free_memory()
    memory.close()
    print(
        json.dumps(
            {
                "at_first": sizes(at_first),
                "scattered": sizes(scattered),
                "compacted": sizes(compacted),
                "by_zones": by_zones,
                "mem_free": mem_free,
                "events": heard.events,
            }
        )
    )


main()
