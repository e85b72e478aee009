"""Which shards are finished, and when their page cache is dropped."""

import os
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
from tests.tree import Tree
from tests.unit.cluster_nodes import EventLines, addresses, agent_under_test, running
from tests.unit.cluster_nodes import settings as cluster_settings
from tests.unit.nodes import until

from sparkd.agent.actions import page_cache
from sparkd.agent.daemon.page_cache import start_load_memory_thread
from sparkd.agent.engine import page_cache_release
from sparkd.agent.engine.contiguous_memory import ContiguousMemory
from sparkd.agent.engine.load_progress import LoadProgress, advance_progress
from sparkd.agent.engine.page_cache_release import PageCacheRelease, ShardUse, find_finished
from sparkd.base.config import Engine, Settings
from sparkd.base.config.settings import Fabric, Memory
from sparkd.base.host import Host
from sparkd.base.host.shm import File
from sparkd.base.host.weights import list_shards

BUILDING = "(Worker pid=9) INFO 01-01 00:00:00 [p.py:1] rank 1 in world size 2 is assigned as DP rank 0, PP rank 0"
LOADING = "(Worker pid=9) INFO 01-01 00:00:00 [x.py:1] Starting to load model /models/m..."
SHARD = "(Worker pid=9) \rLoading safetensors checkpoint shards:  50% Completed | 1/2 [00:01<00:01,  1.00s/it]"
LOADED = "(Worker pid=9) INFO 01-01 00:00:00 [l.py:1] Loading weights took 12.84 seconds"
MODEL_LOADED = "(Worker pid=9) INFO 01-01 00:00:00 [l.py:1] Model loading took 12.66 GiB memory and 31.6 seconds"
SERVING = "INFO:     Application startup complete."


@pytest.mark.parametrize(
    ("looks", "done"),
    [
        ([{0}, {0}], [(), ()]),
        ([{0}, {1}], [(), (0,)]),
        ([{0}, set(), {1}], [(), (0,), ()]),
        ([{0}, {3}], [(), (0, 1, 2)]),
        ([{0, 1}, {1, 2}, {2}], [(), (0,), (1,)]),
        ([{1}, {1}], [(0,), ()]),
        ([{0}, {1}, set(), {0}, {1}], [(), (0,), (1,), (), (0,)]),
        ([set(), set()], [(), ()]),
    ],
)
def test_a_shard_is_finished_once_each_time_it_has_been_used(
    looks: list[set[int]], done: list[tuple[int, ...]]
) -> None:
    use, finished = ShardUse(), []
    for used in looks:
        use, finished_now = find_finished(use, frozenset(used))
        finished.append(finished_now)
    assert finished == done


@pytest.mark.parametrize(
    ("lines", "active"),
    [
        ([], False),
        ([BUILDING], True),
        ([BUILDING, LOADING], True),
        ([LOADING, SHARD.replace("\r", "")], True),
        ([LOADING, LOADED], False),
        ([LOADING, MODEL_LOADED], False),
        ([LOADING, LOADED, SHARD.replace("\r", "")], True),
        ([LOADING, LOADED, SHARD.replace("\r", ""), LOADED], False),
        ([LOADING, SERVING], False),
    ],
)
def test_the_release_is_active_only_while_the_log_shows_a_load(lines: list[str], active: bool) -> None:
    progress = LoadProgress()
    for line in lines:
        progress = advance_progress(progress, line, 0)
    assert (progress.step in page_cache_release.LOADING) is active


def model(tree: Tree, *names: str, size_bytes: int = 1 << 30) -> None:
    for name in names:
        tree.sparse(f"/models/m/{name}", size_bytes)


def test_shards_are_in_the_order_they_are_loaded_in_and_links_are_one_file(tree: Tree) -> None:
    model(tree, "m-10.safetensors", "m-9.safetensors", "config.json")
    tree.link("/models/m/again.safetensors", f"{tree.root}/models/m/m-9.safetensors")
    tree.link("/models/m/gone.safetensors", "missing")
    tree.folder("/models/m/folder.safetensors")
    shards = list_shards(Host().files, f"{tree.root}/models/m")
    assert [shard.name for shard in shards] == ["m-9.safetensors", "m-10.safetensors"]
    assert {shard.size_bytes for shard in shards} == {1 << 30}


def mapped(shard: File) -> str:
    device = f"{os.major(shard.device):02x}:{os.minor(shard.device):02x}"
    return f"7f0000000000-7f0040000000 r--s 00000000 {device} {shard.inode} {shard.path}\n"


PACE_SECONDS = 0.05


class Load:
    """A load that is watched, on a machine made of files: the container's first process is 100, its loader 101."""

    def __init__(self, tree: Tree) -> None:
        self.tree = tree
        self.progress = LoadProgress(step="loading weights")
        self.ready = False
        self.dropped: list[str] = []
        self.size_bytes = 5
        self.wanted_bytes = 0
        self.ended = threading.Event()
        self.events = EventLines()
        self.rank_ended = threading.Event()
        self.host = Host(tree.root)
        self.shards = list_shards(self.host.files, "/models/m")

    def maps(self, *numbers: int, pid: int = 101, parent: int = 100) -> None:
        """Let a process have these shards mapped."""
        folder = self.tree.root / f"proc/{pid}"
        if folder.exists():
            (folder / "maps").write_text("".join(mapped(self.shards[number]) for number in numbers))
        else:
            self.tree.process(pid, "VLLM::Worker", parent=parent)
            self.maps(*numbers, pid=pid)

    def drop(self, shard: File, should_continue: Callable[[], bool]) -> int:
        assert should_continue()
        self.dropped.append(shard.name)
        return self.size_bytes

    def start(self, *, guarded: bool = True) -> None:
        self.release = PageCacheRelease(
            host=self.host,
            model_path="/models/m",
            pid=100,
            ended=self.rank_ended,
            progress=lambda: self.progress,
            is_over=lambda: self.ready,
            drop=self.drop if guarded else None,
            on_weights_loaded=self.ended.set,
            contiguous=ContiguousMemory(
                self.host, self.wanted_bytes, partial(page_cache.compact_memory, self.host), self.events
            ),
            events=self.events,
            pace_seconds=PACE_SECONDS,
        )
        self.thread = threading.Thread(target=self.release.run, daemon=True)
        self.thread.start()

    def end_rank(self) -> None:
        self.rank_ended.set()
        self.thread.join(5)
        assert not self.thread.is_alive()


@pytest.fixture
def load(tree: Tree) -> Iterator[Load]:
    model(tree, *(f"m-{number}.safetensors" for number in range(4)))
    tree.process(1, "init", parent=0)
    tree.process(100, "tini", parent=1)
    load = Load(tree)
    load.maps(0)
    yield load
    load.end_rank()


def wait_for_looks() -> None:
    """Time for some looks."""
    time.sleep(5 * PACE_SECONDS)


def test_the_cache_of_finished_shards_is_dropped_and_logged_when_the_weights_are_loaded(load: Load) -> None:
    load.start()
    wait_for_looks()
    assert load.dropped == []
    load.maps(2)
    until(lambda: load.dropped == ["m-0.safetensors", "m-1.safetensors"], 3)
    assert not load.ended.is_set()
    load.progress = LoadProgress(step="profiling memory")
    until(load.ended.is_set, 3)
    assert load.events.lines == ["page_cache.shards.dropped shards=2 of=4 bytes=10"]
    assert load.release.released_bytes == 10
    load.maps()
    wait_for_looks()
    assert len(load.dropped) == 2, "free memory that grows while the engine profiles it ends the engine"


def test_a_shard_that_another_program_has_mapped_is_left(load: Load) -> None:
    load.maps(0, pid=500, parent=1)
    load.start()
    wait_for_looks()
    load.maps(2)
    until(lambda: bool(load.dropped), 3)
    assert load.dropped == ["m-1.safetensors"]


def test_where_large_blocks_are_short_what_was_kept_is_dropped_and_then_memory_is_compacted(load: Load) -> None:
    load.tree.meminfo(MemFree=9)
    load.tree.file("/proc/sys/vm/compact_memory")
    load.wanted_bytes = 8 << 30
    load.maps(0, pid=500, parent=1)
    load.start()
    load.maps(1)
    wait_for_looks()
    assert load.dropped == [], "another program uses it"
    load.maps(pid=500)
    wait_for_looks()
    assert (load.dropped, load.events.lines) == ([], []), "9 GiB are free in large blocks"
    load.tree.buddyinfo(large_gib=1, small_gib=3)
    until(lambda: len(load.events.lines) == 2, 3)
    assert load.dropped == ["m-0.safetensors"]
    assert load.events.lines == [
        "page_cache.shards.dropped shards=1 of=4 bytes=5",
        "memory.compaction.finished free_bytes=4294967296 large_bytes=1073741824 gained_bytes=0 seconds=0.0",
    ]
    wait_for_looks()
    assert len(load.events.lines) == 2, "the next is due in 20 s"


def test_memory_is_compacted_after_the_weights_too_and_nothing_is_dropped_then(load: Load) -> None:
    load.tree.file("/proc/sys/vm/compact_memory")
    load.wanted_bytes = 8 << 30
    load.tree.meminfo(MemFree=9)
    load.maps(0, pid=500, parent=1)
    load.start()
    load.maps(1)
    wait_for_looks()
    load.progress = LoadProgress(step="profiling memory")
    until(load.ended.is_set, 3)
    load.maps(pid=500)
    load.tree.buddyinfo(large_gib=0.5, small_gib=3)
    until(lambda: len(load.events.lines) == 1, 3)
    assert load.events.lines[0].startswith("memory.compaction.finished ")
    assert load.dropped == []


def test_nothing_is_dropped_where_a_process_of_the_rank_is_unreadable(load: Load) -> None:
    load.start()
    wait_for_looks()
    load.tree.process(102, "VLLM::Worker", parent=100)
    (load.tree.root / "proc/102/maps").unlink()
    load.tree.folder("/proc/102/maps")  # refused to root too
    load.maps(2)
    wait_for_looks()
    assert load.dropped == []


def test_a_shard_without_cache_is_not_counted(load: Load) -> None:
    load.size_bytes = 0
    load.start()
    wait_for_looks()
    load.maps(1)
    until(lambda: load.dropped == ["m-0.safetensors"], 3)
    load.progress = LoadProgress(step="profiling memory")
    until(load.ended.is_set, 3)
    assert load.events.lines == []


@pytest.mark.parametrize(("is_small", "guarded"), [(True, True), (False, False)])
def test_a_small_model_and_a_setting_turn_it_off_and_the_end_of_the_load_is_still_noticed(
    load: Load, is_small: bool, guarded: bool
) -> None:
    if is_small:
        model(load.tree, *(f"m-{number}.safetensors" for number in range(4)), size_bytes=1 << 20)
    load.start(guarded=guarded)
    wait_for_looks()
    load.maps(2)
    wait_for_looks()
    assert load.dropped == []
    load.progress = LoadProgress(step="profiling memory")
    until(load.ended.is_set, 3)


def test_the_release_ends_when_the_engine_serves_whatever_its_log_has(load: Load) -> None:
    load.progress = LoadProgress(step="starting")
    load.ready = True
    load.start()
    until(load.ended.is_set, 3)
    assert load.events.lines == []


def test_a_model_that_cannot_be_read_is_logged_and_ends_no_load(load: Load) -> None:
    (load.tree.root / "models/m").rename(load.tree.root / "models/n")
    load.start()
    until(load.ended.is_set, 3)
    assert load.events.lines[0].startswith("page_cache.release.failed reason=[Errno 2] No such file")


def test_another_file_under_the_same_name_is_left(tmp_path: Path) -> None:
    path = tmp_path / "shard"
    with path.open("wb") as file:
        file.write(b"x" * (1 << 20))
        os.fsync(file.fileno())  # clean pages are those that could be dropped
    assert page_cache.drop_file_cache(Host(), File(str(path), path.stat().st_dev, 1, 4096), lambda: True) == 0


def settings(port: int) -> Settings:
    """Readahead stays as it is."""
    engine = Engine(recipe="tiny-cpu-pair", load_readahead_kib=0)
    return cluster_settings(addresses(2), port).model_copy(update={"engine": engine})


@pytest.mark.parametrize("guarded", [True, False])
def test_the_release_runs_where_the_setting_is_on(tree: Tree, port: int, guarded: bool) -> None:
    configured = settings(port).model_copy(update={"memory": Memory(load_guard=guarded)})
    with agent_under_test(tree, 1, configured) as node, running(node.agent, LOADING) as (rank, _):
        start_load_memory_thread(node.agent, rank)
        if guarded:
            until(
                lambda: any(line.startswith("page_cache.release.failed reason=[Errno 2]") for line in node.events.lines)
            )
        else:
            wait_for_looks()
            assert node.events.lines == []


@pytest.mark.parametrize(("recipe", "compacts"), [("deepseek-v4-flash-balanced", True), ("tiny-cpu-pair", False)])
def test_memory_is_compacted_during_the_load_of_an_engine_that_uses_the_gpu(
    tree: Tree, port: int, recipe: str, compacts: bool
) -> None:
    configured = cluster_settings(addresses(2), port, recipe=recipe)
    configured = configured.model_copy(update={"memory": Memory(load_guard=False), "fabric": Fabric(hcas=("mlx5_0",))})
    with agent_under_test(tree, 1, configured) as node, running(node.agent, LOADING) as (rank, _):
        machine = Tree(Path(node.agent.host.files.root))
        machine.buddyinfo(large_gib=1, small_gib=50)
        written = machine.file("/proc/sys/vm/compact_memory")
        start_load_memory_thread(node.agent, rank)
        if compacts:
            until(lambda: any(line.startswith("memory.compaction.finished ") for line in node.events.lines), 5)
        assert written.read_text() == ("1\n" if compacts else "")


def blocking_calls() -> int:
    return sum(thread.name == "blocking-call" for thread in threading.enumerate())


def test_the_release_ends_when_the_log_breaks_off(tree: Tree, port: int) -> None:
    with agent_under_test(tree, 1, settings(port)) as node, running(node.agent, LOADING, docker_goes=True) as (rank, _):
        machine = Tree(Path(node.agent.host.files.root))
        machine.sparse(f"{node.agent.plan.model_path}/m-0.safetensors", 1 << 30)
        until(lambda: rank.log.broken_off_at is not None)
        before = blocking_calls()
        start_load_memory_thread(node.agent, rank)
        until(lambda: blocking_calls() == before, 3)
        assert not any(line.startswith("page_cache.") for line in node.events.lines)
