"""Page cache that grows while the engine serves: reported, and dropped while it is idle."""

from collections.abc import Callable, Iterator

import pytest
from msgspec.structs import replace
from tests.tree import Tree
from tests.unit.cluster_nodes import agent_under_test, settings

from sparkd.agent.daemon.context import Agent
from sparkd.agent.daemon.page_cache import CREEP_SECONDS, PageCacheWatch
from sparkd.agent.preflight.fixes import Applied
from sparkd.base.config import Settings
from sparkd.base.host import Host
from sparkd.base.host.gpu import GpuFacts
from sparkd.base.lib.text import GIB

NODE = "node0"
SHARED, OWN_MEMORY, UNREADABLE = (
    GpuFacts(("NVIDIA GB10",), None, ()),
    GpuFacts(("x",), 80 * GIB, ()),
    GpuFacts((), None, (), "gone"),
)


def write_memory(tree: Tree, cached_gib: float) -> None:
    Tree(tree.root / NODE).meminfo(MemTotal=120, MemFree=16 - cached_gib, MemAvailable=16, Cached=cached_gib)


def on_a_gpu(*allowed: str) -> Settings:
    configured = settings((), 1, recipe="nemotron-3-super-nvfp4")
    preflight = configured.preflight.model_copy(update={"allow_fixes": allowed})
    return configured.model_copy(update={"preflight": preflight})


class ServingNode:
    """A serving agent, its watch, and how often the cache was dropped."""

    def __init__(self, agent: Agent, tree: Tree, gpu: GpuFacts) -> None:
        self.now, self.dropped, self.tree, self.gpu = 0.0, 0, tree, gpu
        self.readable_after_drop = True
        host = Host(agent.host.files.root, gpu=lambda: self.gpu)
        self.agent = replace(agent, host=host)
        self._watch = PageCacheWatch(self.agent, self._drop, lambda: self.now)

    def _drop(self) -> Applied:
        self.dropped += 1
        write_memory(self.tree, cached_gib=0.5)
        if not self.readable_after_drop:
            self.make_unreadable()
        return Applied("applied", "15.0 GiB freed")

    def make_unreadable(self) -> None:
        (self.tree.root / NODE / "proc/meminfo").unlink()

    def look(self, *, idle: bool) -> list[str]:
        """After ten more minutes; the findings."""
        self.now += CREEP_SECONDS
        before = self.agent.reporter.report
        self._watch.tick(idle)
        self.agent.loop.wait_until(lambda: self.agent.reporter.report is not before, 0.5)
        return [finding.id for finding in self.agent.reporter.report.findings]


@pytest.fixture
def serving_node(tree: Tree) -> Iterator[Callable[..., ServingNode]]:
    with agent_under_test(tree, 0, on_a_gpu("drop-page-cache")) as running:
        yield lambda gpu=SHARED: ServingNode(running.agent, tree, gpu)


def test_page_cache_is_reported_while_requests_run_and_dropped_once_none_does(
    tree: Tree, serving_node: Callable[..., ServingNode]
) -> None:
    node = serving_node()
    write_memory(tree, cached_gib=15)
    assert node.look(idle=False) == ["page-cache"]
    (finding,) = node.agent.reporter.report.findings
    assert finding.level == "warn"
    assert "could be dropped, 1.0 GiB free" in finding.reason
    assert "drop_caches" in finding.hint
    assert node.dropped == 0
    assert node.look(idle=True) == []
    assert node.dropped == 1
    assert node.look(idle=True) == []
    assert node.dropped == 1


def test_nothing_is_looked_at_within_ten_minutes(tree: Tree, serving_node: Callable[..., ServingNode]) -> None:
    node = serving_node()
    write_memory(tree, cached_gib=15)
    node.now -= 1
    assert node.look(idle=True) == []
    assert node.dropped == 0


@pytest.mark.parametrize("gpu", [OWN_MEMORY, UNREADABLE])
def test_a_gpu_with_memory_of_its_own_is_no_reason(
    tree: Tree, serving_node: Callable[..., ServingNode], gpu: GpuFacts
) -> None:
    node = serving_node(gpu)
    write_memory(tree, cached_gib=15)
    assert node.look(idle=True) == []
    assert node.dropped == 0


def test_where_the_fix_is_not_allowed_page_cache_is_only_reported(tree: Tree) -> None:
    with agent_under_test(tree, 0, on_a_gpu()) as running:
        node = ServingNode(running.agent, tree, SHARED)
        write_memory(tree, cached_gib=15)
        assert node.look(idle=True) == ["page-cache"]
        assert node.dropped == 0


def test_what_can_not_be_read_leaves_the_finding(tree: Tree, serving_node: Callable[..., ServingNode]) -> None:
    node = serving_node()
    write_memory(tree, cached_gib=15)
    assert node.look(idle=False) == ["page-cache"]
    node.gpu = UNREADABLE
    assert node.look(idle=True) == ["page-cache"]
    node.gpu = SHARED
    node.make_unreadable()
    assert node.look(idle=True) == ["page-cache"]
    assert node.dropped == 0
    write_memory(tree, cached_gib=15)
    node.readable_after_drop = False
    assert node.look(idle=True) == ["page-cache"]
    assert node.dropped == 1
    write_memory(tree, cached_gib=0.5)
    assert node.look(idle=True) == []
