"""The machine's memory by the kernel's counters, and which memory no counter explains."""

import pytest
from tests.tree import Tree

from sparkd.base.host import Host
from sparkd.base.host.meminfo import MemInfo, read_meminfo


def test_meminfo_is_given_in_bytes_and_what_is_missing_is_zero(tree: Tree) -> None:
    tree.file("/proc/meminfo", "MemTotal: 4 kB\nMemFree: 2 kB\nMemAvailable:       3 kB\nHugePages_Total: 0\n")
    info = Host(tree.root).meminfo()
    assert info == MemInfo(total_bytes=4096, free_bytes=2048, available_bytes=3072)


def test_meminfo_without_the_figures_that_decide_is_an_error(tree: Tree) -> None:
    tree.file("/proc/meminfo", "MemTotal: 4 kB\nMemFree: 2 kB\n")
    with pytest.raises(ValueError, match="MemAvailable"):
        Host(tree.root).meminfo()


def test_a_meminfo_of_another_format_is_an_error(tree: Tree) -> None:
    tree.file("/proc/meminfo", "MemTotal: 4 kB\n\nMemFree: 2 kB\nMemAvailable: 3 kB\n")
    with pytest.raises(ValueError, match="another format"):
        Host(tree.root).meminfo()


@pytest.mark.parametrize("available", [0, 200])
def test_available_memory_is_the_kernels_figure_and_no_estimate(tree: Tree, available: int) -> None:
    tree.meminfo(MemTotal=100, MemFree=10, MemAvailable=available, Cached=20)
    assert Host(tree.root).meminfo().available_bytes == available << 30


def test_cached_includes_reclaimable_slab(tree: Tree) -> None:
    tree.meminfo(MemTotal=100, MemFree=10, MemAvailable=20, Cached=20, SReclaimable=3)
    assert Host(tree.root).meminfo().cached_bytes == 23 << 30


def test_memory_in_no_counter_is_the_drivers(tree: Tree) -> None:
    tree.meminfo(MemTotal=120, MemFree=10, MemAvailable=12, Cached=3, AnonPages=4, Slab=9, SReclaimable=1, SUnreclaim=2)
    assert Host(tree.root).meminfo().unaccounted_bytes == 100 << 30


@pytest.mark.parametrize(
    ("counter", "zswap_gib", "compressed_gib"),
    [
        pytest.param(f"nr_zspages {30 << 18}\n", 0, 30, id="zram"),
        pytest.param(f"nr_zspages {30 << 18}\n", 20, 30, id="zram, and zswap in the same allocator"),
        pytest.param("nr_zspages 0\n", 20, 20, id="zswap in an allocator of its own"),
        pytest.param("", 20, 20, id="a kernel without zsmalloc"),
    ],
)
def test_compressed_swap_is_not_the_drivers(tree: Tree, counter: str, zswap_gib: int, compressed_gib: int) -> None:
    tree.meminfo(MemTotal=120, MemFree=20, MemAvailable=20, Zswap=zswap_gib)
    tree.file("/proc/vmstat", f"nr_bounce 0\n{counter}nr_free_cma 0\n")
    info = read_meminfo(Host(tree.root).files, page_bytes=4096)
    assert info.other_counted_bytes == compressed_gib << 30
    assert info.unaccounted_bytes == (100 - compressed_gib) << 30


@pytest.mark.parametrize(
    ("anonymous_gib", "shared_gib", "locked_gib", "unmapped_gib"),
    [
        pytest.param(30, 0, 0, 10, id="not mapped"),
        pytest.param(40, 0, 0, 0, id="mapped"),
        pytest.param(36, 0, 0, 4, id="mapped in part"),
        pytest.param(20, 10, 0, 10, id="shared memory is in the same lists"),
        pytest.param(40, 5, 5, 0, id="locked shared memory is in a list of its own"),
        pytest.param(10, 0, 0, 30, id="more than the swap cache: given to a pipe, and unmapped"),
        pytest.param(50, 0, 0, 0, id="pages on their way to a list"),
    ],
)
def test_pages_of_processes_that_none_maps_are_not_the_drivers(
    tree: Tree, anonymous_gib: int, shared_gib: int, locked_gib: int, unmapped_gib: int
) -> None:
    """AnonPages has those that are mapped, and Cached none."""
    lists = {"Active(anon)": 25, "Inactive(anon)": 15, "Unevictable": locked_gib}
    counters = {"AnonPages": anonymous_gib, "Shmem": shared_gib, "SwapCached": 10, **lists}
    tree.meminfo(MemTotal=120, MemFree=20, MemAvailable=20, **counters)
    assert Host(tree.root).meminfo().other_counted_bytes == unmapped_gib << 30


def test_locked_files_are_mapped_though_no_list_of_files_has_them(tree: Tree) -> None:
    counters = {"AnonPages": 40, "Active(anon)": 40, "Unevictable": 30, "Cached": 50, "Inactive(file)": 20}
    tree.meminfo(MemTotal=120, MemFree=20, MemAvailable=20, **counters)
    assert Host(tree.root).meminfo().other_counted_bytes == 0
