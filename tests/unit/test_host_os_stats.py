"""What psutil reads, of this machine and of a tree of files."""

from __future__ import annotations

import os
import subprocess
import threading

import psutil
import pytest
from tests.tree import Tree

from sparkd.host import Host, os_stats
from sparkd.host.files import Files

LIVE = Files()


def test_this_process_is_listed_with_its_user() -> None:
    assert os.getpid() in os_stats.pids(LIVE)
    assert os_stats.effective_uid(LIVE, os.getpid()) == os.geteuid()


def test_a_process_that_has_ended_has_no_user() -> None:
    with subprocess.Popen(["true"]) as process:
        process.wait()
    with pytest.raises(ProcessLookupError):
        os_stats.effective_uid(LIVE, process.pid)


def test_a_tree_without_processes_has_none(tree: Tree) -> None:
    tree.folder("/proc")
    assert os_stats.pids(Files(str(tree.root))) == []


def test_a_tree_shows_its_own_processes_and_leaves_psutil_at_this_machine(tree: Tree) -> None:
    tree.process(7, "vllm")
    files = Files(str(tree.root))
    assert (os_stats.pids(files), os_stats.effective_uid(files, 7)) == ([7], 0)
    assert psutil.PROCFS_PATH == "/proc"


def test_two_roots_at_once_are_not_mixed_up(tree: Tree) -> None:
    for pid in range(1, 50):
        tree.process(pid, "sleep")
    files = Files(str(tree.root))
    seen: list[bool] = []

    def look() -> None:
        seen.extend(os_stats.pids(files) == list(range(1, 50)) for _ in range(100))

    threads = [threading.Thread(target=look) for _ in range(2)]
    for thread in threads:
        thread.start()
    mine = [os.getpid() in os_stats.pids(LIVE) for _ in range(100)]
    for thread in threads:
        thread.join()
    assert all(mine) and all(seen)


@pytest.mark.parametrize("name", ["stat", "status"])
def test_no_symlink_leads_psutil_out_of_a_tree(tree: Tree, name: str) -> None:
    tree.process(7, "vllm")
    (tree.root / "proc/7" / name).unlink()
    tree.link(f"/proc/7/{name}", f"/proc/{os.getpid()}/{name}")
    with pytest.raises(OSError, match=name):
        os_stats.effective_uid(Files(str(tree.root)), 7)


def test_psutil_does_not_wait_at_a_fifo_of_a_tree(tree: Tree) -> None:
    tree.process(7, "vllm")
    (tree.root / "proc/7/stat").unlink()
    os.mkfifo(tree.root / "proc/7/stat")
    with pytest.raises(OSError, match="no regular file"):
        os_stats.effective_uid(Files(str(tree.root)), 7)


def test_a_line_that_is_cut_is_no_process(tree: Tree) -> None:
    tree.process(7, "vllm")
    tree.file("/proc/7/stat", "7 (vllm) S 1 7 7")
    with pytest.raises(ValueError, match="/proc/7"):
        os_stats.effective_uid(Files(str(tree.root)), 7)


@pytest.mark.parametrize("available", [0, 200])
def test_available_memory_is_the_kernels_figure_and_no_estimate(tree: Tree, available: int) -> None:
    tree.meminfo(MemTotal=100, MemFree=10, MemAvailable=available, Cached=20)
    assert Host(tree.root).meminfo().available_bytes == available << 30


def test_cached_counts_what_the_slab_would_give_back(tree: Tree) -> None:
    tree.meminfo(MemTotal=100, MemFree=10, MemAvailable=20, Cached=20, SReclaimable=3)
    assert Host(tree.root).meminfo().cached_bytes == 23 << 30


def test_a_meminfo_of_another_format_is_an_error(tree: Tree) -> None:
    tree.file("/proc/meminfo", "MemTotal: 4 kB\n\nMemFree: 2 kB\nMemAvailable: 3 kB\n")
    with pytest.raises(ValueError, match="another format"):
        Host(tree.root).meminfo()


def test_room_on_a_disk_counts_what_is_kept_back_for_root() -> None:
    found = os.statvfs("/")
    total, free = os_stats.disk_space("/")
    assert total == found.f_blocks * found.f_frsize
    assert abs(free - found.f_bfree * found.f_frsize) < 1 << 30
