"""Memory is compacted, and a file's page cache dropped, only where what that was judged on still holds."""

import os
import time
from functools import partial
from pathlib import Path

import pytest
from tests.tree import Tree

from sparkd.agent.actions import ACT_SECONDS, Actions
from sparkd.agent.actions.page_cache import compact_memory, drop_file_cache, drop_page_cache
from sparkd.agent.preflight.fixes import Applied, CompactMemory, DropPageCache
from sparkd.base.host import Host
from sparkd.base.host.owner import NodeOwner
from sparkd.base.host.shm import File
from sparkd.base.lib.main_loop import MainLoop, T, Work
from sparkd.base.lib.systemd import Notifier
from sparkd.base.lib.text import GIB

COMPACT = "/proc/sys/vm/compact_memory"


def test_the_page_cache_is_not_dropped_after_a_sync_that_the_start_has_given_up(tree: Tree) -> None:
    tree.meminfo(MemTotal=128, MemFree=8, MemAvailable=100)
    written = tree.file("/proc/sys/vm/drop_caches")
    assert drop_page_cache(Host(tree.root), deadline=time.monotonic()).state == "failed"
    assert written.read_text() == ""
    assert drop_page_cache(Host(tree.root)).state == "applied"
    assert written.read_text() == "3\n"


class LateLoop(MainLoop):
    """Keeps work for later, as while an earlier sync is awaited."""

    kept: object = None

    def beside(self, work: Work[T], seconds: float, what: str, *, shielded: bool = False) -> T:
        self.kept = work
        raise TimeoutError(f"{what} did not end within {seconds} s, shielded: {shielded}")


def test_the_time_for_a_sync_begins_before_an_earlier_one_is_awaited(tree: Tree) -> None:
    loop, began = LateLoop(Notifier(), {}), time.monotonic()
    with pytest.raises(TimeoutError, match="sync"):
        Actions(Host(tree.root), loop, NodeOwner(os.getpid(), "a test", "x"), -1).apply(DropPageCache())
    assert isinstance(loop.kept, partial)
    _, deadline = loop.kept.args
    assert began + ACT_SECONDS <= deadline <= time.monotonic() + ACT_SECONDS


def test_the_kernel_gets_the_request_to_compact_all_its_memory(tree: Tree) -> None:
    tree.meminfo()
    tree.buddyinfo(large_gib=1, small_gib=5)
    written = tree.file(COMPACT)
    applied = compact_memory(Host(tree.root), CompactMemory(8 * GIB))
    assert written.read_text() == "1\n"
    assert applied == Applied("applied", "1.0 GiB free in large blocks before, 1.0 GiB now")


def test_a_compaction_that_is_no_longer_needed_is_left(tree: Tree) -> None:
    """The page cache may have been dropped just before."""
    tree.meminfo()
    tree.buddyinfo(large_gib=9)
    written = tree.file(COMPACT)
    applied = compact_memory(Host(tree.root), CompactMemory(8 * GIB))
    assert applied.state == "stale"
    assert written.read_text() == ""


def test_another_file_under_the_same_name_is_left(tmp_path: Path) -> None:
    path = tmp_path / "shard"
    with path.open("wb") as file:
        file.write(b"x" * (1 << 20))
        os.fsync(file.fileno())  # clean pages are those that could be dropped
    assert drop_file_cache(Host(), File(str(path), path.stat().st_dev, 1, 4096), lambda: True) == 0
