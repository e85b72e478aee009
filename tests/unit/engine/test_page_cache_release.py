"""Which shards are finished, and when their page cache is dropped, or memory compacted."""

import threading
import time
from collections.abc import Callable, Iterator
from functools import partial

import pytest
from tests.tree import Tree, maps_line
from tests.unit.cluster_nodes import EventLines
from tests.unit.nodes import until

from sparkd.agent.actions import page_cache
from sparkd.agent.engine import page_cache_release
from sparkd.agent.engine.contiguous_memory import ContiguousMemory
from sparkd.agent.engine.load_progress import LoadProgress, advance_progress
from sparkd.agent.engine.page_cache_release import PageCacheRelease, ShardUse, find_finished
from sparkd.base.host import Host
from sparkd.base.host.shm import File
from sparkd.base.host.weights import list_shards

BUILDING = "(Worker pid=9) INFO 01-01 00:00:00 [p.py:1] rank 1 in world size 2 is assigned as DP rank 0, PP rank 0"
LOADING = "(Worker pid=9) INFO 01-01 00:00:00 [x.py:1] Starting to load model /models/m..."
SHARD = "(Worker pid=9) Loading safetensors checkpoint shards:  50% Completed | 1/2 [00:01<00:01,  1.00s/it]"
LOADED = "(Worker pid=9) INFO 01-01 00:00:00 [l.py:1] Loading weights took 12.84 seconds"
MODEL_LOADED = "(Worker pid=9) INFO 01-01 00:00:00 [l.py:1] Model loading took 12.66 GiB memory and 31.6 seconds"
SERVING = "INFO:     Application startup complete."


@pytest.mark.parametrize(
    ("used_at_looks", "finished_at_looks"),
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
    used_at_looks: list[set[int]], finished_at_looks: list[tuple[int, ...]]
) -> None:
    use = ShardUse()
    for used, expected in zip(used_at_looks, finished_at_looks, strict=True):
        use, finished = find_finished(use, frozenset(used))
        assert finished == expected


@pytest.mark.parametrize(
    ("lines", "active"),
    [
        ([], False),
        ([BUILDING], True),
        ([BUILDING, LOADING], True),
        ([LOADING, SHARD], True),
        ([LOADING, LOADED], False),
        ([LOADING, MODEL_LOADED], False),
        ([LOADING, LOADED, SHARD], True),
        ([LOADING, LOADED, SHARD, LOADED], False),
        ([LOADING, SERVING], False),
    ],
)
def test_the_release_is_active_only_while_the_log_shows_a_load(lines: list[str], active: bool) -> None:
    progress = LoadProgress()
    for line in lines:
        progress = advance_progress(progress, line, 0)
    assert (progress.step in page_cache_release.LOADING) is active


SHARDS = tuple(f"m-{number}.safetensors" for number in range(4))


def write_shards(tree: Tree, size_bytes: int) -> None:
    for name in SHARDS:
        tree.sparse(f"/models/m/{name}", size_bytes)


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
            shards = (self.shards[number] for number in numbers)
            (folder / "maps").write_text("".join(maps_line(*shard.identity, shard.path) for shard in shards))
        else:
            self.tree.process(pid, "VLLM::Worker", parent=parent)
            self.maps(*numbers, pid=pid)

    def drop(self, shard: File, should_continue: Callable[[], bool]) -> int:
        assert should_continue()
        self.dropped.append(shard.name)
        return self.size_bytes

    def start(self, *, guarded: bool = True) -> None:
        """Start the release, and leave it time for some looks."""
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
        wait_for_looks()

    def end_weights(self) -> None:
        self.progress = LoadProgress(step="profiling memory")
        until(self.ended.is_set, 3)

    def end_rank(self) -> None:
        self.rank_ended.set()
        self.thread.join(5)
        assert not self.thread.is_alive()


@pytest.fixture
def load(tree: Tree) -> Iterator[Load]:
    write_shards(tree, 1 << 30)
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
    assert load.dropped == []
    load.maps(2)
    until(lambda: load.dropped == [*SHARDS[:2]], 3)
    assert not load.ended.is_set()
    load.end_weights()
    assert load.events.lines == ["page_cache.shards.dropped shards=2 of=4 bytes=10"]
    assert load.release.released_bytes == 10
    load.maps()
    wait_for_looks()
    assert len(load.dropped) == 2, "free memory that grows while the engine profiles it ends the engine"


def test_a_shard_that_another_program_has_mapped_is_left(load: Load) -> None:
    load.maps(0, pid=500, parent=1)
    load.start()
    load.maps(2)
    until(lambda: bool(load.dropped), 3)
    assert load.dropped == [SHARDS[1]]


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
    assert load.dropped == [], "9 GiB are free in large blocks"
    load.tree.buddyinfo(large_gib=1, small_gib=3)
    until(lambda: len(load.events.lines) == 2, 3)
    assert load.dropped == [SHARDS[0]]
    assert [line.partition(" seconds=")[0] for line in load.events.lines] == [
        "page_cache.shards.dropped shards=1 of=4 bytes=5",
        "memory.compaction.finished free_bytes=4294967296 large_bytes=1073741824 gained_bytes=0",
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
    load.end_weights()
    load.maps(pid=500)
    load.tree.buddyinfo(large_gib=0.5, small_gib=3)
    until(lambda: len(load.events.lines) == 1, 3)
    assert load.events.lines[0].startswith("memory.compaction.finished ")
    assert load.dropped == []


def test_nothing_is_dropped_where_a_process_of_the_rank_is_unreadable(load: Load) -> None:
    load.start()
    load.tree.process(102, "VLLM::Worker", parent=100)
    (load.tree.root / "proc/102/maps").unlink()
    load.tree.folder("/proc/102/maps")  # refused to root too
    load.maps(2)
    wait_for_looks()
    assert load.dropped == []


def test_a_shard_without_cache_is_not_counted(load: Load) -> None:
    load.size_bytes = 0
    load.start()
    load.maps(1)
    until(lambda: load.dropped == [SHARDS[0]], 3)
    load.end_weights()
    assert load.events.lines == []


def test_a_small_model_is_left(load: Load) -> None:
    write_shards(load.tree, 1 << 20)
    load.start()
    load.maps(2)
    wait_for_looks()
    load.end_weights()
    assert load.dropped == []


def test_the_end_of_the_weights_is_noticed_where_nothing_is_to_be_dropped(load: Load) -> None:
    load.start(guarded=False)
    load.end_weights()


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
