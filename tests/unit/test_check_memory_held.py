"""Memory that nobody seems to have: what explains it, and when a reboot is said to give it back."""

from __future__ import annotations

import pytest
from msgspec.structs import replace
from tests.tree import Tree

from sparkd.host import Host
from sparkd.host.gpu import GpuFacts, GpuProcess
from sparkd.preflight.check import Level
from sparkd.preflight.memory_held import HeldFacts, Holder, MemoryHeld

GIB = 1 << 30
GB10 = GpuFacts(("NVIDIA GB10",), None, ())
STUCK = HeldFacts(True, 120 * GIB, 100 * GIB, ())
SILENT = Holder(7, "gnome-shell", None)


@pytest.mark.parametrize(
    ("facts", "level", "words"),
    [
        pytest.param(STUCK, Level.WARN, "100.0 GiB that no process is told to have", id="the driver keeps it"),
        pytest.param(replace(STUCK, unexplained_bytes=4 * GIB), Level.OK, "4.0 GiB are held", id="the driver's own"),
        pytest.param(HeldFacts(True, 16 * GIB, 4 * GIB, ()), Level.OK, "4.0 GiB", id="a small machine"),
        pytest.param(HeldFacts(True, 16 * GIB, 5 * GIB, ()), Level.WARN, "5.0 GiB", id="much of a small machine"),
        pytest.param(replace(STUCK, holders=(SILENT,)), Level.OK, "gnome-shell", id="somebody may have it"),
        pytest.param(replace(STUCK, holders=None), Level.WARN, "can't be told", id="who, can't be told"),
        pytest.param(replace(STUCK, holders=(Holder(7, "python", 99 * GIB),)), Level.OK, "99.0 GiB of it", id="told"),
        pytest.param(
            replace(STUCK, holders=(Holder(7, "python", 10 * GIB),)),
            Level.WARN,
            "90.0 GiB that no process is told to have, but pid 7 (python) with 10.0 GiB",
            id="told, but for the rest",
        ),
        pytest.param(HeldFacts(shares_memory=False), Level.OK, "no GPU", id="no GPU, or one with memory of its own"),
        pytest.param(HeldFacts(False, gpu_error="no answer"), Level.OK, "no answer", id="unified-memory says it"),
    ],
)
def test_what_no_process_has_is_warned_of(facts: HeldFacts, level: Level, words: str) -> None:
    verdict = MemoryHeld().judge(facts)
    assert verdict.level is level
    assert words in verdict.reason
    assert ("reboot" in verdict.hint) == (level is Level.WARN and facts.holders is not None)


def machine(tree: Tree, **gib: float) -> None:
    tree.meminfo(MemTotal=120, MemFree=10, MemAvailable=12, AnonPages=2, Cached=8, **gib)


@pytest.mark.parametrize(
    "elsewhere",
    [
        pytest.param({"Hugetlb": 100}, id="huge pages"),
        pytest.param({"Balloon": 100}, id="a balloon"),
        pytest.param({"Zswap": 100}, id="compressed swap"),
        pytest.param({"CmaTotal": 100, "CmaFree": 0}, id="the contiguous area"),
        pytest.param({"Percpu": 50, "VmallocUsed": 50}, id="the kernel's own"),
    ],
)
def test_what_a_counter_explains_is_nobodys_secret(tree: Tree, elsewhere: dict[str, float]) -> None:
    machine(tree, **elsewhere)
    assert MemoryHeld().probe(Host(tree.root, gpu=lambda: GB10)) == HeldFacts(True, 120 * GIB, 0, ())


def test_more_free_than_the_contiguous_area_has_explains_nothing(tree: Tree) -> None:
    machine(tree, CmaTotal=1, CmaFree=9)
    assert MemoryHeld().probe(Host(tree.root, gpu=lambda: GB10)).unexplained_bytes == 100 * GIB


def test_the_cache_of_zfs_is_known(tree: Tree) -> None:
    machine(tree)
    rows = "13 1 0x01 147 39984 8893 1234\nname                            type data\n"
    tree.file("/proc/spl/kstat/zfs/arcstats", f"{rows}hits 4 12\nsize                            4    {99 * GIB}\n")
    assert MemoryHeld().probe(Host(tree.root, gpu=lambda: GB10)).unexplained_bytes == GIB


def test_probe_names_who_uses_the_gpu_and_what_the_driver_says_they_have(tree: Tree) -> None:
    machine(tree)
    tree.process(7, "python", opened=("/dev/nvidia0",))
    tree.process(8, "nvidia-persiste", opened=("/dev/nvidia0",))
    tree.process(9, "Xorg")
    gpu = replace(GB10, processes=(GpuProcess(9, 5 * GIB), GpuProcess(10, 1)))
    facts = MemoryHeld().probe(Host(tree.root, gpu=lambda: gpu))
    assert facts.holders == (Holder(7, "python", None), Holder(9, "Xorg", 5 * GIB), Holder(10, "?", 1))


def test_a_driver_that_lists_nobody_and_says_so_is_no_answer(tree: Tree) -> None:
    machine(tree)
    facts = MemoryHeld().probe(Host(tree.root, gpu=lambda: replace(GB10, processes=None)))
    assert facts.holders is None


def test_who_hides_what_is_open_may_use_the_gpu(tree: Tree) -> None:
    machine(tree)
    tree.process(7, "python")
    (tree.root / "proc/7/fd").rmdir()
    (tree.root / "proc/7/fd").write_text("")
    assert MemoryHeld().probe(Host(tree.root, gpu=lambda: GB10)).holders is None


@pytest.mark.parametrize(
    "gpu",
    [
        pytest.param(GpuFacts((), None, ()), id="none"),
        pytest.param(GpuFacts(("NVIDIA H200",), 140 * GIB, ()), id="memory of its own"),
    ],
)
def test_without_a_gpu_that_shares_the_memory_nothing_is_suspected(tree: Tree, gpu: GpuFacts) -> None:
    machine(tree)
    assert MemoryHeld().probe(Host(tree.root, gpu=lambda: gpu)).shares_memory is False


def test_a_plan_without_gpus_does_not_ask_the_driver(tree: Tree) -> None:
    def hung() -> GpuFacts:
        raise AssertionError("asked")

    assert MemoryHeld(uses_gpu=False).probe(Host(tree.root, gpu=hung)).shares_memory is False
