"""The page cache, which is dropped where that frees memory."""

import pytest
from tests.tree import Tree

from sparkd.agent.preflight.check import Level
from sparkd.agent.preflight.checks.free_memory import PageCache, PageCacheFacts
from sparkd.base.host import Host
from sparkd.base.lib.text import GIB
from sparkd.base.plan.inputs import MemoryNeed

NEED = MemoryNeed(memory_bytes=98 * GIB, gpu_memory_utilization=None, headroom_bytes=2 * GIB)


@pytest.mark.parametrize(
    ("droppable_gib", "free_gib", "total_gib", "level"),
    [
        pytest.param(90, 11, 120, Level.WARN, id="a model's weights"),
        pytest.param(4, 11, 120, Level.WARN, id="just worth it"),
        pytest.param(3.9, 11, 120, Level.OK, id="not worth it"),
        pytest.param(1, 2, 8, Level.WARN, id="a tenth of a small machine"),
        pytest.param(90, 100, 200, Level.OK, id="enough is free"),
    ],
)
def test_page_cache_is_dropped_where_that_gains_something(
    droppable_gib: float, free_gib: int, total_gib: int, level: Level
) -> None:
    verdict = PageCache(NEED).judge(PageCacheFacts(total_gib * GIB, free_gib * GIB, round(droppable_gib * GIB)))
    assert verdict.level is level
    assert [fix.kind for fix in verdict.fixes] == (["drop-page-cache"] if level is Level.WARN else [])
    assert not any(fix.frees_bytes for fix in verdict.fixes), "it makes nothing available"


def test_pages_that_are_shared_mapped_or_dirty_are_not_to_be_dropped(tree: Tree) -> None:
    tree.meminfo(
        MemTotal=120, MemFree=10, MemAvailable=90, Cached=90, Buffers=1, SReclaimable=2, Shmem=3, Mapped=4, Dirty=5,
        Writeback=1,
    )  # fmt: skip
    assert PageCache(NEED).probe(Host(tree.root)) == PageCacheFacts(120 * GIB, 10 * GIB, 80 * GIB)
