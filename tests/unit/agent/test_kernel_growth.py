"""Kernels that come into the caches during a load, and while requests wait."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from msgspec.structs import replace
from tests.tree import Tree
from tests.unit.cluster_nodes import AgentUnderTest, agent_under_test, alone, running, until_with
from tests.unit.followers import LOADING

from sparkd.agent.daemon.loading import follow_load, make_load_monitor
from sparkd.agent.daemon.warming import KernelGrowth
from sparkd.agent.engine.rank import Running
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


def test_a_load_reports_how_many_kernels_of_a_build_are_compiled(tree: Tree) -> None:
    with agent_under_test(tree, 0, alone()) as node, running(node.agent, LOADING) as (rank, process):
        plan = replace(node.agent.plan, caches=(Cache("flashinfer", "/root/.cache/flashinfer"),))
        agent = replace(node.agent, context=replace(node.agent.context, plan=plan))
        machine, group = Tree(Path(agent.host.files.root)), f"/docker/{rank.rank.container_id}"
        machine.process(process.pid, "VLLM::EngineCor", cgroup=f"0::{group}")
        machine.process(process.pid + 1, "cicc", parent=process.pid, cgroup=f"0::{group}")
        machine.file(f"/sys/fs/cgroup{group}/cgroup.procs", f"{process.pid}\n{process.pid + 1}\n")
        build = f"{caches.path(rank.rank.image_id, 'flashinfer')}/op"
        machine.file(f"{build}/build.ninja", "rule c\nbuild a.o: c a\nbuild b.o: c b\nbuild op.so: c a.o b.o\n")
        machine.file(f"{build}/a.o")
        agent.run_aside("compilers", rank.compilers.run)
        monitor = make_load_monitor(agent, rank)

        def reports_count() -> bool:
            follow_load(agent, rank, monitor)
            return "; compiling kernels, 1 of 2, 1 at a time" in node.report.message

        until_with(reports_count, node)


@contextmanager
def build_under_way(tree: Tree, pause_seconds: float) -> Iterator[tuple[AgentUnderTest, Tree, Running]]:
    """A build of two objects, of which one was there when they were first counted."""
    with agent_under_test(tree, 0, alone()) as node, running(node.agent, LOADING) as (usual_rank, _):
        rank = replace(usual_rank, follow_seconds=pause_seconds)
        build = Tree(Path(node.agent.host.files.real(f"{caches.path(rank.rank.image_id, 'flashinfer')}/op")))
        build.file("/build.ninja", "rule c\nbuild a.o: c a\nbuild b.o: c b\nbuild op.so: c a.o b.o\n")
        build.file("/a.o")
        assert rank.count_objects(("flashinfer",)) == (0, 0), "the disk is not waited for"
        until_with(lambda: rank.count_objects(("flashinfer",)) == (1, 2), node)
        yield node, build, rank


def test_the_objects_of_a_build_are_counted_again(tree: Tree) -> None:
    with build_under_way(tree, pause_seconds=0) as (node, build, rank):
        build.file("/b.o")
        until_with(lambda: rank.count_objects(("flashinfer",)) == (2, 2), node)


def test_the_objects_of_a_build_are_not_counted_again_before_the_pause_is_over(tree: Tree) -> None:
    with build_under_way(tree, pause_seconds=60) as (node, build, rank):
        build.file("/b.o")
        assert not node.agent.loop.wait_until(lambda: rank.count_objects(("flashinfer",)) == (2, 2), 0.3)


def test_a_count_that_a_disk_fails_ends_no_load(tree: Tree) -> None:
    with agent_under_test(tree, 0, alone()) as node, running(node.agent, LOADING) as (rank, _):
        build = Path(node.agent.host.files.real(f"{caches.path(rank.rank.image_id, 'flashinfer')}/op"))
        build.mkdir(parents=True)
        build.joinpath("build.ninja").symlink_to("/nowhere")
        assert not node.agent.loop.wait_until(lambda: rank.count_objects(("flashinfer",)) != (0, 0), 0.3)
