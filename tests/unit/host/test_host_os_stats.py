"""psutil's readings of this machine and of a tree of files."""

import os
import threading

import psutil
import pytest
from tests.tree import Tree

from sparkd.base.host import os_stats
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
    listed: list[bool] = []

    def list_pids() -> None:
        listed.extend(os_stats.pids(files) == list(range(1, 50)) for _ in range(100))

    threads = [threading.Thread(target=list_pids) for _ in range(2)]
    for thread in threads:
        thread.start()
    mine = [os.getpid() in os_stats.pids(LIVE) for _ in range(100)]
    for thread in threads:
        thread.join()
    assert all(mine)
    assert listed == [True] * 200
    assert psutil.PROCFS_PATH == "/proc", "psutil is left at this machine"


def test_psutil_follows_no_link_out_of_a_tree(tree: Tree) -> None:
    tree.link("/proc/meminfo", "/proc/meminfo2")
    with pytest.raises(OSError, match="no regular file"):
        os_stats.memory(Files(str(tree.root)))


def test_psutil_waits_at_no_fifo(tree: Tree) -> None:
    os.mkfifo(tree.path("/proc/meminfo"))
    with pytest.raises(OSError, match="no regular file"):
        os_stats.memory(Files(str(tree.root)))


def test_free_space_includes_blocks_reserved_for_root() -> None:
    file_system = os.statvfs("/")
    total_bytes, free_bytes = os_stats.disk_space("/")
    assert total_bytes == file_system.f_blocks * file_system.f_frsize
    assert abs(free_bytes - file_system.f_bfree * file_system.f_frsize) < 1 << 30
