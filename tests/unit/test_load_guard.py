"""Which shards are done with, what a load changes for its time, and when a GPU is called slow."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path

import pytest
from tests.tree import Tree
from tests.unit.cluster_nodes import Life, Told, addresses, free_port, life, running
from tests.unit.cluster_nodes import settings as cluster_settings
from tests.unit.nodes import until

from sparkd import gpu_watch, load_guard
from sparkd import load as agent_load
from sparkd.agent import Agent
from sparkd.engine.story import Story, read
from sparkd.gpu_watch import Clocks, GpuWatch, Slow, decide
from sparkd.hands import page_cache, readahead
from sparkd.host import Host, shards
from sparkd.host import readahead as host_readahead
from sparkd.host.gpu_clocks import GpuClocks
from sparkd.host.shards import Shard
from sparkd.load_guard import LoadGuard, Watch, finished
from sparkd.report.node_report import FindingReport, Phase
from sparkd.service import with_gpu
from sparkd.settings import Engine, Settings
from sparkd.settings.model import Memory

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
    watch, found = Watch(), []
    for used in looks:
        watch, finished_now = finished(watch, frozenset(used))
        found.append(finished_now)
    assert found == done


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
def test_it_is_active_only_while_the_engine_says_that_it_loads(lines: list[str], active: bool) -> None:
    story = Story()
    for line in lines:
        story = read(story, line, 0)
    assert (story.step in load_guard.LOADING) is active


def model(tree: Tree, *names: str, size_bytes: int = 1 << 30) -> None:
    for name in names:
        tree.sparse(f"/models/m/{name}", size_bytes)


def test_shards_are_in_the_order_they_are_loaded_in_and_links_are_one_file(tree: Tree) -> None:
    model(tree, "m-10.safetensors", "m-9.safetensors", "config.json")
    tree.link("/models/m/again.safetensors", f"{tree.root}/models/m/m-9.safetensors")
    tree.link("/models/m/gone.safetensors", "nowhere")
    tree.folder("/models/m/folder.safetensors")
    found = shards.of_model(Host().files, f"{tree.root}/models/m")
    assert [one.name for one in found] == ["m-9.safetensors", "m-10.safetensors"]
    assert {one.size_bytes for one in found} == {1 << 30}


def mapped(shard: Shard) -> str:
    device = f"{os.major(shard.device):02x}:{os.minor(shard.device):02x}"
    return f"7f0000000000-7f0040000000 r--s 00000000 {device} {shard.inode} {shard.path}\n"


PACE_SECONDS = 0.05


class Load:
    """A guard that runs, on a machine made of files: the container's first process is 100, its loader 101."""

    def __init__(self, tree: Tree, rank: Path) -> None:
        self.tree = tree
        self.story = Story(step="loading weights")
        self.ready = False
        self.given: list[str] = []
        self.size_bytes = 5
        self.ended = threading.Event()
        self.told = Told()
        self.pidfd, self._end = os.pipe()
        self.host = Host(tree.root)
        self.shards = shards.of_model(self.host.files, "/models/m")

    def maps(self, *numbers: int, pid: int = 101, parent: int = 100) -> None:
        folder = self.tree.root / f"proc/{pid}"
        if folder.exists():
            (folder / "maps").write_text("".join(mapped(self.shards[number]) for number in numbers))
        else:
            self.tree.process(pid, "VLLM::Worker", parent=parent)
            self.maps(*numbers, pid=pid)

    def give_back(self, shard: Shard, still: Callable[[], bool]) -> int:
        assert still()
        self.given.append(shard.name)
        return self.size_bytes

    def start(self, *, guarded: bool = True) -> None:
        guard = LoadGuard(
            host=self.host,
            model_path="/models/m",
            pid=100,
            pidfd=self.pidfd,
            story=lambda: self.story,
            over=lambda: self.ready,
            give_back=self.give_back if guarded else None,
            loaded=self.ended.set,
            events=self.told,
            pace_seconds=PACE_SECONDS,
        )
        self.thread = threading.Thread(target=guard.run, daemon=True)
        self.thread.start()

    def end_rank(self) -> None:
        os.close(self._end)
        self.thread.join(5)
        assert not self.thread.is_alive()


@pytest.fixture
def load(tree: Tree, tmp_path: Path) -> Iterator[Load]:
    model(tree, *(f"m-{number}.safetensors" for number in range(4)))
    tree.process(1, "init", parent=0)
    tree.process(100, "tini", parent=1)
    made = Load(tree, tmp_path)
    made.maps(0)
    yield made
    made.end_rank()


def passes() -> None:
    """Time for some looks."""
    time.sleep(5 * PACE_SECONDS)


def test_finished_shards_are_given_back_and_told_when_the_weights_are_loaded(load: Load) -> None:
    load.start()
    passes()
    assert load.given == []
    load.maps(2)
    until(lambda: load.given == ["m-0.safetensors", "m-1.safetensors"], 3)
    assert not load.ended.is_set()
    load.story = Story(step="profiling memory")
    until(load.ended.is_set, 3)
    assert load.told.lines == ["load.cache.returned shards=2 of=4 bytes=10"]
    load.maps()
    passes()
    assert len(load.given) == 2, "free memory that grows while the engine profiles it ends the engine"


def test_a_shard_that_another_program_has_mapped_is_left(load: Load) -> None:
    load.maps(0, pid=500, parent=1)
    load.start()
    passes()
    load.maps(2)
    until(lambda: bool(load.given), 3)
    assert load.given == ["m-1.safetensors"]


def test_nothing_is_given_back_where_a_process_of_the_rank_cannot_be_looked_at(load: Load) -> None:
    load.start()
    passes()
    load.tree.process(102, "VLLM::Worker", parent=100, state="Z", threads=3)
    load.maps(2)
    passes()
    assert load.given == []


def test_what_had_no_cache_is_not_counted(load: Load) -> None:
    load.size_bytes = 0
    load.start()
    passes()
    load.maps(1)
    until(lambda: load.given == ["m-0.safetensors"], 3)
    load.story = Story(step="profiling memory")
    until(load.ended.is_set, 3)
    assert load.told.lines == []


@pytest.mark.parametrize("how", ["small", "off"])
def test_a_small_model_and_a_setting_turn_it_off_and_the_end_of_the_load_is_still_noticed(load: Load, how: str) -> None:
    if how == "small":
        model(load.tree, *(f"m-{number}.safetensors" for number in range(4)), size_bytes=1 << 20)
    load.start(guarded=how != "off")
    passes()
    load.maps(2)
    passes()
    assert load.given == []
    load.story = Story(step="profiling memory")
    until(load.ended.is_set, 3)


def test_it_ends_when_the_engine_serves_whatever_its_log_said(load: Load) -> None:
    load.story = Story(step="starting")
    load.ready = True
    load.start()
    until(load.ended.is_set, 3)
    assert load.told.lines == []


def test_a_model_that_cannot_be_read_is_told_and_ends_no_load(load: Load) -> None:
    (load.tree.root / "models/m").rename(load.tree.root / "models/n")
    load.start()
    until(load.ended.is_set, 3)
    assert load.told.lines[0].startswith("load.guard.ended reason=[Errno 2] No such file")


def test_another_file_under_the_same_name_is_left(tmp_path: Path) -> None:
    path = tmp_path / "shard"
    path.write_bytes(b"x" * 4096)
    assert page_cache.give_back(Host(), Shard(str(path), "shard", path.stat().st_dev, 1, 4096), lambda: True) == 0


# -- readahead


@pytest.fixture
def disk(tree: Tree) -> Tree:
    """A model on a partition of nvme0n1, whose disk is 259:0."""
    device = tree.folder("/models/m").stat().st_dev
    block = "/sys/devices/pci0/nvme0n1/nvme0n1p2"
    tree.file("/sys/devices/pci0/nvme0n1/dev", "259:0\n")
    tree.file(f"{block}/partition", "2\n")
    tree.link(f"/sys/dev/block/{os.major(device)}:{os.minor(device)}", f"../..{block.removeprefix('/sys')}")
    tree.file("/sys/devices/virtual/bdi/259:0/read_ahead_kb", "128\n")
    tree.link("/sys/class/bdi/259:0", "../../devices/virtual/bdi/259:0")
    return tree


def read_ahead(tree: Tree) -> str:
    return (tree.root / "sys/devices/virtual/bdi/259:0/read_ahead_kb").read_text().strip()


def test_a_partition_reads_ahead_as_its_disk_does(disk: Tree) -> None:
    assert host_readahead.setting(Host(disk.root).files, "/models/m") == "/sys/class/bdi/259:0/read_ahead_kb"


def test_a_file_system_without_a_disk_has_no_such_setting(tree: Tree) -> None:
    tree.folder("/models/m")
    with pytest.raises(FileNotFoundError):
        host_readahead.setting(Host(tree.root).files, "/models/m")


def test_readahead_is_lowered_and_given_back_also_by_the_next_agent(disk: Tree, tmp_path: Path) -> None:
    host, memory = Host(disk.root), tmp_path / "readahead.json"
    change = readahead.lower(host, "/models/m", 8, memory)
    assert change == readahead.Change("/sys/class/bdi/259:0/read_ahead_kb", 128, 8)
    assert read_ahead(disk) == "8"
    assert readahead.restore(host, memory) == readahead.Change(change.path, 8, 128)
    assert read_ahead(disk) == "128"
    assert not memory.exists()
    assert readahead.restore(host, memory) is None


@pytest.mark.parametrize("kib", [4, 8, 16, 128])
def test_what_an_agent_that_was_killed_has_lowered_is_not_taken_for_the_disks_own(
    disk: Tree, tmp_path: Path, kib: int
) -> None:
    host, memory = Host(disk.root), tmp_path / "readahead.json"
    readahead.lower(host, "/models/m", 8, memory)
    readahead.lower(host, "/models/m", kib, memory)
    assert read_ahead(disk) == str(kib)
    readahead.restore(host, memory)
    assert read_ahead(disk) == "128"


def test_a_disk_that_holds_the_model_no_more_is_given_its_own_value_back(disk: Tree, tmp_path: Path) -> None:
    host, memory = Host(disk.root), tmp_path / "readahead.json"
    disk.file("/sys/devices/virtual/bdi/7:1/read_ahead_kb", "8\n")
    disk.link("/sys/class/bdi/7:1", "../../devices/virtual/bdi/7:1")
    memory.write_text('{"path": "/sys/class/bdi/7:1/read_ahead_kb", "before_kib": 512, "after_kib": 8}')
    readahead.lower(host, "/models/m", 8, memory)
    assert (disk.root / "sys/devices/virtual/bdi/7:1/read_ahead_kb").read_text() == "512\n"
    readahead.restore(host, memory)
    assert read_ahead(disk) == "128"


def test_readahead_that_is_low_enough_is_left_alone(disk: Tree, tmp_path: Path) -> None:
    assert readahead.lower(Host(disk.root), "/models/m", 128, tmp_path / "readahead.json") is None
    assert read_ahead(disk) == "128"


def test_readahead_that_somebody_else_set_meanwhile_stays(disk: Tree, tmp_path: Path) -> None:
    host, memory = Host(disk.root), tmp_path / "readahead.json"
    readahead.lower(host, "/models/m", 8, memory)
    disk.file("/sys/devices/virtual/bdi/259:0/read_ahead_kb", "4096\n")
    assert readahead.restore(host, memory) is None
    assert read_ahead(disk) == "4096"
    assert not memory.exists()


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", '{"path": "/etc/passwd", "before_kib": 1, "after_kib": 8}',
     '{"path": "/sys/class/bdi/../../../etc/passwd", "before_kib": 1, "after_kib": 8}',
     '{"path": "/sys/class/bdi/259:0/read_ahead_kb", "before_kib": "x", "after_kib": 8}'],
)  # fmt: skip
def test_a_memory_that_says_nothing_sensible_changes_nothing(disk: Tree, tmp_path: Path, text: str) -> None:
    memory = tmp_path / "readahead.json"
    memory.write_text(text)
    assert readahead.restore(Host(disk.root), memory) is None
    assert read_ahead(disk) == "128"


# -- the agent


def settings(load_readahead_kib: int = 0) -> Settings:
    base = cluster_settings(addresses(2), free_port())
    return base.model_copy(update={"engine": Engine(recipe="tiny-cpu-pair", load_readahead_kib=load_readahead_kib)})


@pytest.fixture
def lowering(tree: Tree) -> Iterator[Life]:
    with life(tree, 1, settings(8)) as made:
        yield made


@pytest.fixture
def agent(tree: Tree) -> Iterator[Agent]:
    with life(tree, 1, settings()) as made:
        yield made.agent


def test_a_readahead_that_cannot_be_set_is_told_and_ends_no_launch(lowering: Life) -> None:
    agent_load.prepare(lowering.agent)
    (line,) = lowering.told.lines
    assert line.startswith("load.readahead.kept reason=[Errno 2] No such file")


def test_a_readahead_that_is_not_to_be_set_is_not_looked_for(agent: Agent) -> None:
    agent_load.prepare(agent)
    assert isinstance(agent.events, Told)
    assert agent.events.lines == []


@pytest.mark.parametrize("guarded", [True, False])
def test_the_guard_runs_beside_the_agent_where_it_is_wanted(tree: Tree, guarded: bool) -> None:
    configured = settings().model_copy(update={"memory": Memory(load_guard=guarded)})
    with life(tree, 1, configured) as made, running(made.agent, LOADING) as (rank, _):
        agent_load.accompany(made.agent, rank)
        if guarded:
            until(lambda: any(line.startswith("load.guard.ended reason=[Errno 2]") for line in made.told.lines))
        else:
            passes()
            assert made.told.lines == []


def besides() -> int:
    return sum(thread.name == "beside" for thread in threading.enumerate())


def test_the_guard_ends_where_the_log_is_broken_off_for_it_may_hide_that_the_load_is_over(tree: Tree) -> None:
    with life(tree, 1, settings()) as made, running(made.agent, LOADING, docker_goes=True) as (rank, _):
        below = Tree(Path(made.agent.host.files.root))
        below.sparse(f"{made.agent.plan.model_path}/m-0.safetensors", 1 << 30)
        until(lambda: rank.log.broken_off_at is not None)
        before = besides()
        agent_load.accompany(made.agent, rank)
        until(lambda: besides() == before, 3)
        assert not any(line.startswith("load.") for line in made.told.lines)


# -- throttle watch


def gpu(mhz: int | None, watts: float | None, percent: int | None, name: str = "NVIDIA GB10", *held: str) -> Clocks:
    return (GpuClocks(name, mhz, watts, percent, held),)


SLOW, FAST, IDLE = gpu(611, 22.4, 96), gpu(2411, 61, 96), gpu(208, 4, 0)
SAID = "the GPU is slow: 611 MHz and 22 W under load"


@pytest.mark.parametrize(
    ("looks", "warning"),
    [
        ([SLOW], ""),
        ([SLOW, SLOW], SAID),
        ([SLOW, FAST, SLOW], ""),
        ([SLOW, IDLE, SLOW], ""),
        ([SLOW, (), SLOW], ""),
        ([SLOW, SLOW, IDLE], SAID),
        ([SLOW, SLOW, ()], SAID),
        ([SLOW, SLOW, FAST], ""),
        ([FAST] * 3, ""),
        ([IDLE] * 3, ""),
        ([gpu(850, 30, 90)] * 2, "the GPU is slow: 850 MHz and 30 W under load"),
        ([gpu(851, 30, 90)] * 2, ""),
        ([gpu(850, 30.1, 90)] * 2, ""),
        ([gpu(850, 30, 89)] * 2, ""),
        ([gpu(2400, 20, 96)] * 2, ""),
        ([gpu(None, 22, 96)] * 2, ""),
        ([gpu(611, None, 96)] * 2, ""),
        ([gpu(611, 22, None)] * 2, ""),
        ([gpu(611, 22, 96, "NVIDIA T4")] * 2, ""),
        ([gpu(611, 22, 96, "NVIDIA GB10", "its power cap")] * 2, f"{SAID}, held down by its power cap"),
    ],
)  # fmt: skip
def test_a_gpu_is_slow_where_two_looks_under_load_find_it_so(looks: list[Clocks], warning: str) -> None:
    slow = Slow()
    for number, seen in enumerate(looks):
        slow = decide(slow, seen, 1000 + 30 * number)
    assert slow.warning == warning


def test_it_is_no_longer_than_half_a_minute_under_load_that_makes_a_gpu_slow() -> None:
    slow = decide(Slow(), SLOW, 0)
    assert decide(slow, SLOW, 29.9).warning == ""
    assert decide(slow, SLOW, 30).warning == SAID


class Now:
    """Does the work at once."""

    def start(self, work: Callable[[], Clocks]) -> Future[Clocks]:
        future: Future[Clocks] = Future()
        future.set_result(work())
        return future


class Never:
    """A driver that hangs."""

    def __init__(self) -> None:
        self.asked = 0

    def start(self, work: Callable[[], Clocks]) -> Future[Clocks]:
        self.asked += 1
        return Future()


class Clock:
    """Each look is half a minute after the one before."""

    now = 0.0

    def __call__(self) -> float:
        self.now += gpu_watch.LOOK_SECONDS
        return self.now


def test_a_slow_gpu_is_told_once_and_again_when_it_is_well() -> None:
    told, answers = Told(), [SLOW, SLOW, SLOW, IDLE, FAST, FAST]
    watch = GpuWatch(Now(), told, lambda: answers.pop(0), Clock())
    said = [watch.look() for _ in range(6)]
    assert said == ["", "", SAID, SAID, SAID, ""]
    assert [line.split()[0] for line in told.lines] == ["gpu.clocks.stuck", "gpu.clocks.recovered"]


def test_a_gpu_is_asked_twice_a_minute_however_often_one_looks() -> None:
    asked: list[int] = []

    def read() -> Clocks:
        asked.append(1)
        return FAST

    watch = GpuWatch(Now(), Told(), read, lambda: 1000.0)
    for _ in range(5):
        watch.look()
    assert len(asked) == 1


def test_a_driver_that_hangs_is_asked_once_and_nothing_waits_for_it() -> None:
    never = Never()
    watch = GpuWatch(never, Told(), lambda: FAST, Clock())
    assert [watch.look() for _ in range(5)] == [""] * 5
    assert never.asked == 1


def test_a_slow_gpu_is_in_the_message_and_among_the_findings_and_changes_no_phase(agent: Agent) -> None:
    preflight = FindingReport("page-cache", "warn", "4 GiB", "")
    agent.reporter.update(phase=Phase.SERVING, findings=(preflight,))
    answers = [SLOW, SLOW, FAST]
    watch = GpuWatch(Now(), Told(), lambda: answers.pop(0), Clock())
    assert with_gpu(agent, "m on port 8000", watch) == "m on port 8000"
    assert with_gpu(agent, "m on port 8000", watch) == "m on port 8000"
    assert with_gpu(agent, "m on port 8000", watch) == f"m on port 8000; {SAID}: {gpu_watch.HINT}"
    slow = FindingReport("gpu-clocks", "warn", SAID, gpu_watch.HINT)
    assert list(agent.reporter.report.findings) == [preflight, slow]
    assert with_gpu(agent, "m on port 8000", GpuWatch(Now(), Told(), lambda: FAST, Clock())) == "m on port 8000"
    assert list(agent.reporter.report.findings) == [preflight]
    assert agent.reporter.report.phase is Phase.SERVING
