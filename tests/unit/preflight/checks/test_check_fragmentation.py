"""Free memory in large blocks: how the kernel's table is read, and when it is too little."""

import pytest
from tests.tree import Tree
from tests.unit.plans import configured
from tests.unit.verdicts import expect

from sparkd.agent.preflight.check import Level
from sparkd.agent.preflight.checks.free_memory import FragmentedMemory
from sparkd.agent.preflight.fixes import WORTH_COMPACTING_BYTES, CompactMemory
from sparkd.agent.preflight.runner import examine
from sparkd.base.config import Settings
from sparkd.base.host import Host
from sparkd.base.host.meminfo import FreeMemory, read_free_memory
from sparkd.base.lib.text import GIB, MIB

KIB = 1024
CHECK = FragmentedMemory(Settings())


@pytest.mark.parametrize(
    ("facts", "uses_gpu", "level", "words"),
    [
        pytest.param(FreeMemory(112 * GIB, 100 * GIB), True, Level.OK, "100.0 GiB of 112.0 GiB", id="fresh boot"),
        pytest.param(FreeMemory(9 * GIB, 8 * GIB), True, Level.OK, "8.0 GiB", id="just enough"),
        pytest.param(FreeMemory(112 * GIB, 8 * GIB - 1), True, Level.WARN, "reboot this node", id="fragmented"),
        pytest.param(FreeMemory(112 * GIB, 0), True, Level.WARN, "vm.min_free_kbytes", id="with the report's warning"),
        pytest.param(FreeMemory(112 * GIB, 0), False, Level.OK, "no GPU", id="no driver needs blocks"),
    ],
)
def test_less_in_large_blocks_than_wanted_warns(facts: FreeMemory, uses_gpu: bool, level: Level, words: str) -> None:
    verdict = FragmentedMemory(Settings(), uses_gpu).judge(facts)
    expect(verdict, level, text=words)
    assert verdict.fixes == ((CompactMemory(8 * GIB),) if level is Level.WARN else ())


def test_where_little_is_free_there_is_nothing_to_merge() -> None:
    """3.4 of 3.5 GiB in large blocks."""
    verdict = CHECK.judge(FreeMemory(round(3.5 * GIB), round(3.4 * GIB)))
    words = "3.4 GiB of 3.5 GiB free memory is in blocks of 2 MiB or more, 8.0 GiB wanted: too little is free"
    expect(verdict, Level.WARN, text=words)
    assert (verdict.fixes, verdict.hint.partition(";")[0]) == ((), "see what has it: free -h")
    scattered = CHECK.judge(FreeMemory(round(3.5 * GIB), round(3.5 * GIB) - WORTH_COMPACTING_BYTES))
    assert scattered.fixes == (CompactMemory(8 * GIB),)


def test_memory_that_the_kernel_does_not_list_is_not_judged() -> None:
    """Linux 6.18 with deferred_init=lazy: 3.1 GiB in blocks, 124 GiB free."""
    verdict = CHECK.judge(FreeMemory(3 * GIB, 3 * GIB, unlisted_bytes=121 * GIB))
    expect(verdict, Level.SKIPPED, text="lists 3.0 GiB of the 124.0 GiB")
    assert not verdict.fixes


def test_a_setting_of_zero_turns_it_off() -> None:
    expect(FragmentedMemory(configured(memory={"contiguous_gib": 0})).judge(FreeMemory(112 * GIB, 0)), Level.OK)


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
    free = read_free_memory(Host(tree.root).files, page_bytes=4 * KIB)
    assert free == FreeMemory(SMALL + LARGE + 256 * MIB, LARGE - 10 * MIB)
    tree.file("/proc/meminfo", "MemFree: 2097152 kB\nCmaFree: 9000000 kB\n")
    assert read_free_memory(Host(tree.root).files, page_bytes=4 * KIB).unlisted_bytes == 2 * GIB - free.bytes
    assert read_free_memory(Host(tree.root).files, page_bytes=4 * KIB).large_bytes == 0


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
    free = read_free_memory(Host(tree.root).files, page_bytes=page_kib * KIB)
    assert free == FreeMemory(total, total if large else 0)


@pytest.mark.parametrize("text", ["Node 0, zone   Normal\n", "Node 0, zone   Normal  -1 2\n", "free: 1 kB\n", ""])
def test_another_format_is_not_taken_for_a_number(tree: Tree, text: str) -> None:
    tree.file("/proc/buddyinfo", text)
    tree.file("/proc/meminfo", "MemFree: 1 kB\n")
    with pytest.raises(ValueError, match="/proc/buddyinfo"):
        CHECK.probe(Host(tree.root))


def test_a_node_without_the_table_is_warned_of_and_starts(tree: Tree) -> None:
    tree.file("/proc/meminfo", "MemFree: 1 kB\n")
    (finding,) = examine([CHECK], Host(tree.root))
    expect(finding.verdict, Level.WARN, text="could not look")
