"""Kernels that come into the caches while requests wait."""

from pathlib import Path

from msgspec.structs import replace
from tests.tree import Tree
from tests.unit.cluster_nodes import agent_under_test, alone

from sparkd.agent.daemon.warming import KernelGrowth
from sparkd.base.host import caches
from sparkd.base.plan.model import Cache

IMAGE = f"sha256:{'d' * 64}"


def test_only_a_kernel_that_came_since_the_last_look_is_growth(tree: Tree) -> None:
    with agent_under_test(tree, 0, alone()) as node:
        plan = replace(node.agent.plan, caches=(Cache("cutlass", "/root/.cache/cutlass"),))
        agent = replace(node.agent, context=replace(node.agent.context, plan=plan))
        agent.reporter.update(engine=replace(agent.reporter.report.engine, image=IMAGE))
        cache = Tree(Path(agent.host.files.real(caches.path(IMAGE, "cutlass"))))
        cache.file("/a/one.o")
        growth = KernelGrowth(agent)
        assert not growth.detect(), "it was there before"
        assert not growth.detect()
        cache.file("/b/log.txt")
        assert not growth.detect(), "no kernel"
        cache.file("/b/two.o")
        assert growth.detect()
        assert not growth.detect()
