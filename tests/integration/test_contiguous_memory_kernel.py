"""Free memory in large blocks, as this machine's kernel counts it. Compaction is shown in QEMU: tests/bed/qemu."""

import mmap
import re
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from tests.unit.cluster_nodes import EventLines
from tests.unit.nodes import until

from sparkd.agent.actions import page_cache
from sparkd.agent.engine.contiguous_memory import ContiguousMemory
from sparkd.agent.preflight.fixes import WORTH_COMPACTING_BYTES
from sparkd.base.host import Host
from sparkd.base.host.meminfo import LARGE_BLOCK_BYTES

pytestmark = pytest.mark.alone
TOLERANCE_BYTES = 64 << 20
"""Other programs take and give memory between two looks."""
HELD_BYTES = 1 << 30


def sum_zones(name: str) -> int:
    """Sum of one counter in /proc/zoneinfo; 0 where this kernel has none."""
    pages = re.findall(rf"^ *{name} +(\d+)$", Path("/proc/zoneinfo").read_text(), re.MULTILINE)
    return sum(map(int, pages)) * mmap.PAGESIZE


def agree(measured: Callable[[], int], expected: Callable[[], int]) -> bool:
    """Whether `measured` is once between two readings of `expected`, within the tolerance; tried for five seconds."""
    for _ in range(20):
        before, measured_bytes, after = expected(), measured(), expected()
        if min(before, after) - TOLERANCE_BYTES < measured_bytes < max(before, after) + TOLERANCE_BYTES:
            return True
        time.sleep(0.25)
    return False


def free_bytes() -> int:
    return Host().free_memory().bytes


def large_bytes() -> int:
    return Host().free_memory().large_bytes


def test_the_sum_of_all_blocks_is_what_the_kernel_has_free() -> None:
    assert agree(free_bytes, partial(sum_zones, "nr_free_pages"))


def test_large_blocks_are_those_that_the_kernel_counts_as_whole_page_blocks() -> None:
    if not sum_zones("nr_free_pages_blocks") or mmap.PAGESIZE * 512 != LARGE_BLOCK_BYTES:
        pytest.skip("this kernel has no such counter (it is of Linux 6.16), or page blocks of another size")
    assert agree(large_bytes, partial(sum_zones, "nr_free_pages_blocks"))


def test_the_guard_of_a_load_compacts_once_where_memory_is_short() -> None:
    events = EventLines()
    guard = ContiguousMemory(Host(), 1 << 50, partial(page_cache.compact_memory, Host()), events)
    with mmap.mmap(-1, HELD_BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as memory:
        memory.madvise(mmap.MADV_NOHUGEPAGE)
        memory.write(b"x" * HELD_BYTES)
        for offset in range(0, HELD_BYTES, 2 * mmap.PAGESIZE):
            memory.madvise(mmap.MADV_DONTNEED, offset, mmap.PAGESIZE)
        until(
            lambda: Host().free_memory().scattered_bytes > WORTH_COMPACTING_BYTES, 30
        )  # the processors keep some for seconds
        for _ in range(3):
            guard.keep(lambda: None)
    (line,) = events.lines
    assert line.startswith("memory.compaction.finished ")


def test_a_look_costs_less_than_a_millisecond() -> None:
    """Once a second while the engine loads: 40 us on a machine of two busy cores."""
    host, looks = Host(), 500
    began = time.process_time()
    for _ in range(looks):
        host.free_memory()
    assert (time.process_time() - began) / looks < 1e-3
