"""Memory during a load: an agent releases page cache and compacts, where its settings and its recipe want that."""

import threading
from pathlib import Path

import pytest
from tests.tree import Tree
from tests.unit.cluster_nodes import addresses, agent_under_test, running
from tests.unit.cluster_nodes import settings as cluster_settings
from tests.unit.nodes import until

from sparkd.agent.daemon.page_cache import start_load_memory_thread
from sparkd.base.config import Engine, Settings
from sparkd.base.config.settings import Fabric, Memory

LOADING = "(Worker pid=9) INFO 01-01 00:00:00 [x.py:1] Starting to load model /models/m..."


def settings(port: int) -> Settings:
    """Readahead stays as it is."""
    engine = Engine(recipe="tiny-cpu-pair", load_readahead_kib=0)
    return cluster_settings(addresses(2), port).model_copy(update={"engine": engine})


@pytest.mark.parametrize("guarded", [True, False])
def test_page_cache_is_released_where_the_setting_is_on(tree: Tree, port: int, guarded: bool) -> None:
    configured = settings(port).model_copy(update={"memory": Memory(load_guard=guarded)})
    with agent_under_test(tree, 1, configured) as node, running(node.agent, LOADING) as (rank, _):
        start_load_memory_thread(node.agent, rank)
        assert (rank.cache_release is not None) is guarded


def test_the_load_of_an_engine_without_a_gpu_needs_no_large_blocks(tree: Tree, port: int) -> None:
    with agent_under_test(tree, 1, settings(port)) as node, running(node.agent, LOADING) as (rank, _):
        start_load_memory_thread(node.agent, rank)
        assert rank.cache_release is not None
        assert rank.cache_release.contiguous.wanted_bytes == 0


def test_memory_is_compacted_during_the_load_of_an_engine_that_uses_the_gpu(tree: Tree, port: int) -> None:
    configured = cluster_settings(addresses(2), port, recipe="deepseek-v4-flash-balanced")
    configured = configured.model_copy(update={"memory": Memory(load_guard=False), "fabric": Fabric(hcas=("mlx5_0",))})
    with agent_under_test(tree, 1, configured) as node, running(node.agent, LOADING) as (rank, _):
        machine = Tree(Path(node.agent.host.files.root))
        machine.buddyinfo(large_gib=1, small_gib=50)
        written = machine.file("/proc/sys/vm/compact_memory")
        start_load_memory_thread(node.agent, rank)
        until(lambda: any(line.startswith("memory.compaction.finished ") for line in node.events.lines), 5)
        assert written.read_text() == "1\n"


def page_cache_threads() -> int:
    return sum(thread.name == "page-cache" for thread in threading.enumerate())


def test_the_release_ends_when_the_log_breaks_off(tree: Tree, port: int) -> None:
    with agent_under_test(tree, 1, settings(port)) as node, running(node.agent, LOADING, docker_goes=True) as (rank, _):
        machine = Tree(Path(node.agent.host.files.root))
        machine.sparse(f"{node.agent.plan.model_path}/m-0.safetensors", 1 << 30)
        until(lambda: rank.log.broken_off_at is not None)
        before = page_cache_threads()
        start_load_memory_thread(node.agent, rank)
        until(lambda: page_cache_threads() == before, 3)
        assert not any(line.startswith("page_cache.") for line in node.events.lines)
