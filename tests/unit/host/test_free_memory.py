"""Free memory by the size of its blocks, as the kernel's table lists it."""

import pytest
from tests.tree import Tree

from sparkd.base.host.files import Files
from sparkd.base.host.meminfo import FreeMemory, read_free_memory
from sparkd.base.lib.text import GIB, MIB

KIB = 1024
TWO_NODES = """\
Node 0, zone      DMA      1      0      0      0      0      0      0      0      1      1      3 
Node 0, zone   Normal    100     50      0      0      0      0      0      0      2      5      7 
Node 1, zone   Normal      0      0      0      0      0      0      0      0      0      4      0 
Node 1, zone  Movable      8      0      0      0      0      0      0      0      0      0     64 
"""  # noqa: W291  # as the kernel writes it
LARGE = (1 * 2 + 3 * 4 + 5 * 2 + 7 * 4 + 4 * 2) * MIB
SMALL = (1 + 100 + 2 * 50 + 8) * 4 * KIB + 3 * MIB


def test_every_zone_of_every_node_counts_and_what_a_driver_cannot_have_is_not_large(tree: Tree) -> None:
    tree.file("/proc/buddyinfo", TWO_NODES)
    tree.file("/proc/meminfo", "MemFree: 1 kB\nCmaTotal:        65536 kB\nCmaFree:         10240 kB\n")
    free = read_free_memory(Files(str(tree.root)), page_bytes=4 * KIB)
    assert free == FreeMemory(SMALL + LARGE + 256 * MIB, LARGE - 10 * MIB)
    tree.file("/proc/meminfo", "MemFree: 2097152 kB\nCmaFree: 9000000 kB\n")
    assert read_free_memory(Files(str(tree.root)), page_bytes=4 * KIB).unlisted_bytes == 2 * GIB - free.bytes
    assert read_free_memory(Files(str(tree.root)), page_bytes=4 * KIB).large_bytes == 0


@pytest.mark.parametrize(
    ("page_kib", "order", "large"),
    [(4, 8, False), (4, 9, True), (16, 6, False), (16, 7, True), (64, 4, False), (64, 5, True), (64, 13, True)],
)
def test_a_large_block_has_2_mib_whatever_the_size_of_a_page(
    tree: Tree, page_kib: int, order: int, large: bool
) -> None:
    counts = [0] * 14
    counts[order] = 3
    tree.file("/proc/buddyinfo", f"Node 0, zone   Normal {' '.join(f'{count:6}' for count in counts)} \n")
    tree.file("/proc/meminfo", "MemFree: 1 kB\n")
    total = 3 * (page_kib * KIB << order)
    free = read_free_memory(Files(str(tree.root)), page_bytes=page_kib * KIB)
    assert free == FreeMemory(total, total if large else 0)


@pytest.mark.parametrize("text", ["Node 0, zone   Normal\n", "Node 0, zone   Normal  -1 2\n", "free: 1 kB\n", ""])
def test_another_format_is_not_taken_for_a_number(tree: Tree, text: str) -> None:
    tree.file("/proc/buddyinfo", text)
    tree.file("/proc/meminfo", "MemFree: 1 kB\n")
    with pytest.raises(ValueError, match="/proc/buddyinfo"):
        read_free_memory(Files(str(tree.root)), page_bytes=4 * KIB)
