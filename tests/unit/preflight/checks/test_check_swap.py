"""Swap, which slows an engine down where a GPU shares the memory."""

import pytest
from tests.tree import Tree
from tests.unit.verdicts import expect

from sparkd.agent.preflight.check import Finding, Level
from sparkd.agent.preflight.checks.free_memory import SwapFacts, SwapOff
from sparkd.agent.preflight.gate import decision
from sparkd.base.host import Host
from sparkd.base.host.meminfo import Swap
from sparkd.base.lib.text import GIB

SWAPS_HEADING = "Filename\t\t\t\tType\t\tSize\t\tUsed\t\tPriority\n"
FILE = Swap("/swap.img", 16 * GIB, 2 * GIB)
ZRAM = Swap("/dev/zram0", 60 * GIB, 0)


@pytest.mark.parametrize(
    ("areas", "uses_gpu", "level", "words"),
    [
        pytest.param((), True, Level.OK, "off", id="off"),
        pytest.param((FILE,), True, Level.WARN, "/swap.img 16.0 GiB; 2.0 GiB in use", id="a file"),
        pytest.param((FILE, ZRAM), True, Level.WARN, "/etc/fstab", id="both"),
        pytest.param(
            (FILE,), True, Level.WARN, "while no engine runs, as it reads what is in use back", id="what is in use"
        ),
        pytest.param((FILE,), False, Level.OK, "no GPU", id="without GPU it helps"),
    ],
)
def test_swap_is_warned_of_where_a_gpu_shares_the_memory(
    areas: tuple[Swap, ...], uses_gpu: bool, level: Level, words: str
) -> None:
    expect(SwapOff(uses_gpu).judge(SwapFacts(areas)), level, text=words)


def test_pages_that_come_and_go_are_no_new_decision() -> None:
    verdicts = (SwapOff().judge(SwapFacts((Swap("/swap.img", 16 * GIB, used),))) for used in (GIB, 2 * GIB))
    first, second = (decision(Finding("swap", verdict, {}, 0.0)) for verdict in verdicts)
    assert first == second


def test_probe_reads_the_kernels_table(tree: Tree) -> None:
    line = "/mnt/my\\040swap                         file\t\t16777212\t\t1024\t\t-2\n"
    tree.file("/proc/swaps", SWAPS_HEADING + line)
    assert SwapOff().probe(Host(tree.root)).areas == (Swap("/mnt/my swap", 16777212 * 1024, 1 << 20),)


@pytest.mark.parametrize("text", [SWAPS_HEADING, ""])
def test_no_area_is_no_swap(tree: Tree, text: str) -> None:
    tree.file("/proc/swaps", text)
    assert SwapOff().probe(Host(tree.root)).areas == ()


def test_a_kernel_without_swap_has_none(tree: Tree) -> None:
    assert SwapOff().probe(Host(tree.root)).areas == ()


@pytest.mark.parametrize("line", ["/swap.img file many 0 -2", "/swap.img file 1"])
def test_another_format_is_unknown(tree: Tree, line: str) -> None:
    tree.file("/proc/swaps", f"{SWAPS_HEADING}{line}\n")
    with pytest.raises(ValueError, match="another format"):
        SwapOff().probe(Host(tree.root))
