"""Memory that nobody seems to have: the GPU's driver keeps what belongs to no process."""

import pytest
from msgspec.structs import replace
from tests.tree import Tree
from tests.unit.verdicts import expect, never_queried

from sparkd.agent.preflight.check import Level
from sparkd.agent.preflight.checks.unaccounted_memory import UnaccountedFacts, UnaccountedMemory
from sparkd.agent.preflight.gpu_users import GpuUser
from sparkd.base.host import Host
from sparkd.base.host.gpu import GpuFacts, GpuProcess
from sparkd.base.lib.text import GIB

GB10 = GpuFacts(names=("NVIDIA GB10",), total_bytes=None, processes=())
STUCK = UnaccountedFacts(shares_memory=True, total_bytes=120 * GIB, unexplained_bytes=100 * GIB, holders=())
SMALL = replace(STUCK, total_bytes=16 * GIB)
PYTHON = GpuUser(pid=7, comm="python", bytes=10 * GIB)
SILENT = GpuUser(pid=7, comm="gnome-shell", bytes=None)
"""Listed, without a size."""
IDLE = GpuUser(pid=8, comm="dcgm-exporter", bytes=0)
"""Not listed: it only has the devices open."""


@pytest.mark.parametrize(
    ("facts", "level", "words"),
    [
        pytest.param(STUCK, Level.WARN, "100.0 GiB that belongs to no process", id="the driver keeps it"),
        pytest.param(replace(STUCK, unexplained_bytes=4 * GIB), Level.OK, "4.0 GiB are held", id="the driver's own"),
        pytest.param(replace(SMALL, unexplained_bytes=4 * GIB), Level.OK, "4.0 GiB", id="a small machine"),
        pytest.param(replace(SMALL, unexplained_bytes=5 * GIB), Level.WARN, "5.0 GiB", id="much of a small machine"),
        pytest.param(replace(STUCK, holders=(SILENT,)), Level.OK, "gnome-shell", id="somebody may have it"),
        pytest.param(replace(STUCK, holders=(IDLE,)), Level.WARN, "100.0 GiB that belongs to no", id="only looks on"),
        pytest.param(replace(STUCK, holders=None), Level.WARN, "users are unknown", id="users unknown"),
        pytest.param(
            replace(STUCK, holders=(replace(PYTHON, bytes=99 * GIB),)), Level.OK, "99.0 GiB of it", id="reported"
        ),
        pytest.param(
            replace(STUCK, holders=(PYTHON,)), Level.WARN, "90.0 GiB that belongs to no", id="partly reported"
        ),
        pytest.param(
            UnaccountedFacts(shares_memory=False), Level.OK, "no GPU", id="no GPU, or one with memory of its own"
        ),
        pytest.param(
            UnaccountedFacts(False, gpu_error="no answer"), Level.SKIPPED, "no answer", id="unified-memory says it"
        ),
    ],
)
def test_memory_that_no_process_has_is_warned_of(facts: UnaccountedFacts, level: Level, words: str) -> None:
    verdict = UnaccountedMemory().judge(facts)
    expect(verdict, level, words)
    assert ("reboot" in verdict.hint) == (level is Level.WARN and facts.holders is not None)


def test_a_process_that_has_the_devices_open_is_to_end_before_a_reboot_and_has_no_part_in_the_sum() -> None:
    verdict = UnaccountedMemory().judge(replace(STUCK, holders=(PYTHON, IDLE)))
    assert verdict.reason.endswith("belongs to no process, but pid 7 (python) with 10.0 GiB")
    users = "pid 7 (python), pid 8 (dcgm-exporter)"
    assert verdict.hint == f"if it stays once {users} have ended, a reboot gives it back: sudo systemctl reboot"


def fill(tree: Tree, **gib: float) -> None:
    """100 of 120 GiB are in use that only `gib` explains: more counters of the kernel."""
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
def test_memory_that_a_counter_explains_is_not_called_unexplained(tree: Tree, elsewhere: dict[str, float]) -> None:
    fill(tree, **elsewhere)
    assert UnaccountedMemory().probe(Host(tree.root, gpu=lambda: GB10)) == replace(STUCK, unexplained_bytes=0)


def test_more_free_than_the_contiguous_area_has_explains_nothing(tree: Tree) -> None:
    fill(tree, CmaTotal=1, CmaFree=9)
    assert UnaccountedMemory().probe(Host(tree.root, gpu=lambda: GB10)).unexplained_bytes == 100 * GIB


def test_the_cache_of_zfs_is_known(tree: Tree) -> None:
    fill(tree)
    rows = "13 1 0x01 147 39984 8893 1234\nname                            type data\n"
    tree.file("/proc/spl/kstat/zfs/arcstats", f"{rows}hits 4 12\nsize                            4    {99 * GIB}\n")
    assert UnaccountedMemory().probe(Host(tree.root, gpu=lambda: GB10)).unexplained_bytes == GIB


def test_probe_names_who_uses_the_gpu_and_what_the_driver_says_they_have(tree: Tree) -> None:
    fill(tree)
    python_pid, xorg_pid, gone_pid = 7, 9, 10
    tree.process(python_pid, "python", opened=("/dev/nvidia0",))
    tree.process(xorg_pid, "Xorg")
    gpu = replace(GB10, processes=(GpuProcess(xorg_pid, used_bytes=5 * GIB), GpuProcess(gone_pid, used_bytes=1)))
    facts = UnaccountedMemory().probe(Host(tree.root, gpu=lambda: gpu))
    assert facts.holders == (
        GpuUser(python_pid, "python", bytes=0),
        GpuUser(xorg_pid, "Xorg", bytes=5 * GIB),
        GpuUser(gone_pid, "", bytes=1, gone=True),
    )


def test_a_driver_that_lists_nobody_and_says_so_is_no_answer(tree: Tree) -> None:
    fill(tree)
    facts = UnaccountedMemory().probe(Host(tree.root, gpu=lambda: replace(GB10, processes=None)))
    assert facts.holders is None


@pytest.mark.parametrize(
    "gpu",
    [
        pytest.param(GpuFacts(names=(), total_bytes=None, processes=()), id="none"),
        pytest.param(GpuFacts(names=("NVIDIA H200",), total_bytes=140 * GIB, processes=()), id="memory of its own"),
    ],
)
def test_without_a_gpu_that_shares_the_memory_nothing_is_suspected(tree: Tree, gpu: GpuFacts) -> None:
    fill(tree)
    assert UnaccountedMemory().probe(Host(tree.root, gpu=lambda: gpu)).shares_memory is False
    assert UnaccountedMemory(uses_gpu=False).probe(Host(tree.root, gpu=never_queried)).shares_memory is False
