"""Kernels that come into the caches during a load, and while requests wait."""

from pathlib import Path

from msgspec.structs import replace
from tests.tree import Tree
from tests.unit.cluster_nodes import agent_under_test, alone, running, until_with
from tests.unit.followers import LOADING

from sparkd.agent.daemon.loading import follow_load, make_load_monitor
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


def test_a_count_that_a_disk_fails_ends_no_load(tree: Tree) -> None:
    with agent_under_test(tree, 0, alone()) as node, running(node.agent, LOADING) as (rank, _):
        build = Path(node.agent.host.files.real(f"{caches.path(rank.rank.image_id, 'flashinfer')}/op"))
        build.mkdir(parents=True)
        build.joinpath("build.ninja").symlink_to("/nowhere")
        rank.count_objects(("flashinfer",))
        for _ in range(20):
            node.agent.loop.wait(0.02)
        assert rank.count_objects(("flashinfer",)) == (0, 0)
