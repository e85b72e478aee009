"""psutil's readings of this machine and of a tree of files."""

import os
import threading

import psutil
import pytest
from tests.tree import Tree

from sparkd.base.host import Host, os_stats
from sparkd.base.host.files import Files

LIVE = Files()


def test_this_process_is_listed() -> None:
    assert os.getpid() in os_stats.pids(LIVE)


def test_a_tree_without_processes_has_none(tree: Tree) -> None:
    tree.folder("/proc")
    assert os_stats.pids(Files(str(tree.root))) == []


def test_two_roots_at_once_are_not_mixed_up(tree: Tree) -> None:
    for pid in range(1, 50):
        tree.process(pid, "sleep")
    files = Files(str(tree.root))
    seen: list[bool] = []

    def list_pids() -> None:
        seen.extend(os_stats.pids(files) == list(range(1, 50)) for _ in range(100))

    threads = [threading.Thread(target=list_pids) for _ in range(2)]
    for thread in threads:
        thread.start()
    mine = [os.getpid() in os_stats.pids(LIVE) for _ in range(100)]
    for thread in threads:
        thread.join()
    assert all(mine)
    assert seen == [True] * 200
    assert psutil.PROCFS_PATH == "/proc", "psutil is left at this machine"


@pytest.mark.parametrize("what", ["symlink", "fifo"])
def test_psutil_neither_leaves_a_tree_nor_waits_in_it(tree: Tree, what: str) -> None:
    path = tree.root / "proc/meminfo"
    path.unlink(missing_ok=True)
    if what == "fifo":
        os.mkfifo(path)
    else:
        tree.link("/proc/meminfo", "/proc/meminfo2")
    with pytest.raises(OSError, match="no regular file"):
        os_stats.memory(Files(str(tree.root)))


@pytest.mark.parametrize("available", [0, 200])
def test_available_memory_is_the_kernels_figure_and_no_estimate(tree: Tree, available: int) -> None:
    tree.meminfo(MemTotal=100, MemFree=10, MemAvailable=available, Cached=20)
    assert Host(tree.root).meminfo().available_bytes == available << 30


def test_cached_includes_reclaimable_slab(tree: Tree) -> None:
    tree.meminfo(MemTotal=100, MemFree=10, MemAvailable=20, Cached=20, SReclaimable=3)
    assert Host(tree.root).meminfo().cached_bytes == 23 << 30


def test_a_meminfo_of_another_format_is_an_error(tree: Tree) -> None:
    tree.file("/proc/meminfo", "MemTotal: 4 kB\n\nMemFree: 2 kB\nMemAvailable: 3 kB\n")
    with pytest.raises(ValueError, match="another format"):
        Host(tree.root).meminfo()


def test_free_space_includes_blocks_reserved_for_root() -> None:
    found = os.statvfs("/")
    total, free = os_stats.disk_space("/")
    assert total == found.f_blocks * found.f_frsize
    assert abs(free - found.f_bfree * found.f_frsize) < 1 << 30
