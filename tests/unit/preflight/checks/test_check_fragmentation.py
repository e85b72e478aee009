"""Free memory in large blocks, and when it is too little."""

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
from sparkd.base.host.meminfo import FreeMemory
from sparkd.base.lib.text import GIB

CHECK = FragmentedMemory(Settings())


@pytest.mark.parametrize(
    ("facts", "uses_gpu", "words"),
    [
        pytest.param(FreeMemory(112 * GIB, 100 * GIB), True, "100.0 GiB of 112.0 GiB", id="fresh boot"),
        pytest.param(FreeMemory(9 * GIB, 8 * GIB), True, "8.0 GiB", id="just enough"),
        pytest.param(FreeMemory(112 * GIB, 0), False, "no GPU", id="no driver needs blocks"),
    ],
)
def test_enough_in_large_blocks_is_good(facts: FreeMemory, uses_gpu: bool, words: str) -> None:
    expect(FragmentedMemory(Settings(), uses_gpu).judge(facts), Level.OK, words)


def test_less_in_large_blocks_than_wanted_warns() -> None:
    verdict = CHECK.judge(FreeMemory(112 * GIB, 8 * GIB - 1))
    expect(verdict, Level.WARN, text="reboot this node. Do not raise vm.min", fixes=(CompactMemory(8 * GIB),))


def test_where_little_is_free_there_is_nothing_to_merge() -> None:
    """3.4 of 3.5 GiB in large blocks."""
    verdict = CHECK.judge(FreeMemory(round(3.5 * GIB), round(3.4 * GIB)))
    words = "3.4 GiB of 3.5 GiB free memory is in blocks of 2 MiB or more, 8.0 GiB wanted: too little is free"
    expect(verdict, Level.WARN, text=f"{words} see what has it: free -h;", fixes=())
    scattered = CHECK.judge(FreeMemory(round(3.5 * GIB), round(3.5 * GIB) - WORTH_COMPACTING_BYTES))
    assert scattered.fixes == (CompactMemory(8 * GIB),)


def test_memory_that_the_kernel_does_not_list_is_not_judged() -> None:
    """Linux 6.18 with deferred_init=lazy: 3.1 GiB in blocks, 124 GiB free."""
    verdict = CHECK.judge(FreeMemory(3 * GIB, 3 * GIB, unlisted_bytes=121 * GIB))
    expect(verdict, Level.SKIPPED, text="lists 3.0 GiB of the 124.0 GiB")
    assert not verdict.fixes


def test_a_setting_of_zero_turns_it_off() -> None:
    expect(FragmentedMemory(configured(memory={"contiguous_gib": 0})).judge(FreeMemory(112 * GIB, 0)), Level.OK)


def test_a_node_without_the_table_is_warned_of_and_starts(tree: Tree) -> None:
    tree.file("/proc/meminfo", "MemFree: 1 kB\n")
    (finding,) = examine([CHECK], Host(tree.root))
    expect(finding.verdict, Level.WARN, text="could not look")
