"""The page cache, which is dropped where that frees memory."""

import pytest
from tests.tree import Tree
from tests.unit.verdicts import expect

from sparkd.agent.preflight.check import Level
from sparkd.agent.preflight.checks.free_memory import PageCache, PageCacheFacts
from sparkd.agent.preflight.fixes import DropPageCache
from sparkd.base.host import Host
from sparkd.base.lib.text import GIB
from sparkd.base.plan.inputs import MemoryNeed

DROP = DropPageCache(frees_bytes=0)
"""It makes nothing available."""
NEED = MemoryNeed(memory_bytes=98 * GIB, gpu_memory_utilization=None, headroom_bytes=2 * GIB)


@pytest.mark.parametrize(
    ("droppable_gib", "free_gib", "total_gib", "level", "fixes"),
    [
        pytest.param(90, 11, 120, Level.WARN, (DROP,), id="a model's weights"),
        pytest.param(4, 11, 120, Level.WARN, (DROP,), id="just worth it"),
        pytest.param(3.9, 11, 120, Level.OK, (), id="not worth it"),
        pytest.param(1, 2, 8, Level.WARN, (DROP,), id="a tenth of a small machine"),
        pytest.param(90, 100, 200, Level.OK, (), id="enough is free"),
    ],
)
def test_page_cache_is_dropped_where_that_gains_something(
    droppable_gib: float, free_gib: int, total_gib: int, level: Level, fixes: tuple[DropPageCache, ...]
) -> None:
    facts = PageCacheFacts(total_gib * GIB, free_gib * GIB, round(droppable_gib * GIB))
    expect(PageCache(NEED).judge(facts), level, fixes=fixes)


def test_pages_that_are_shared_mapped_or_dirty_are_not_to_be_dropped(tree: Tree) -> None:
    tree.meminfo(
        MemTotal=120, MemFree=10, MemAvailable=90, Cached=90, Buffers=1, SReclaimable=2, Shmem=3, Mapped=4, Dirty=5,
        Writeback=1,
    )  # fmt: skip
    assert PageCache(NEED).probe(Host(tree.root)) == PageCacheFacts(120 * GIB, 10 * GIB, 80 * GIB)
