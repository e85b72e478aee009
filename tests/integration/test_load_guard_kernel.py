"""The load guard on a real page cache: files on this machine's disk, read and mapped by a process of the test's own."""

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from tests.unit.cluster_nodes import EventLines
from tests.unit.nodes import until

from sparkd.agent.actions import page_cache, readahead
from sparkd.agent.engine.contiguous_memory import ContiguousMemory
from sparkd.agent.engine.load_progress import LoadProgress
from sparkd.agent.engine.page_cache_release import LEAST_BYTES, PageCacheRelease
from sparkd.base.host import Host, weights
from sparkd.base.host.activity import read_activity
from sparkd.base.lib.main_loop import MainLoop
from sparkd.base.lib.systemd import Notifier

pytestmark = pytest.mark.alone
REPOSITORY = Path(__file__).parents[2]
SHARD_BYTES = 64 << 20
PACE_SECONDS = 0.2

LOADER = """
import mmap, sys
held = {}
print("up", flush=True)
for line in sys.stdin:
    what, path = line.split()
    if what == "map":
        with open(path, "rb") as file:
            held[path] = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
        sum(held[path][at] for at in range(0, len(held[path]), 4096))
    elif what == "open":
        held[path] = open(path, "rb")
        while held[path].read(1 << 20): pass
    else:
        held.pop(path).close()
    print("done", flush=True)
"""


class Loader:
    """A process that maps, reads and closes files on command; its parent plays the container's first process."""

    def __init__(self) -> None:
        code = f"import subprocess, sys; sys.exit(subprocess.call([sys.executable, '-c', {LOADER!r}]))"
        self.process = subprocess.Popen(
            [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self._answer() == "up"

    def send(self, what: str, shard: Path) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{what} {shard}\n")
        self.process.stdin.flush()
        assert self._answer() == "done"

    def _answer(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def end(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait(10)


@pytest.fixture
def loader() -> Iterator[Loader]:
    loader = Loader()
    yield loader
    loader.end()


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """Three shards of 64 MiB and a hole of a GiB, written to disk, and none of them in the page cache."""
    folder = tmp_path / "model"
    folder.mkdir()
    for number in range(3):
        with (folder / f"m-{number}.safetensors").open("wb") as file:
            for _ in range(SHARD_BYTES >> 20):
                file.write(os.urandom(1 << 20))
            os.fsync(file.fileno())
    hole = folder / "m-3.safetensors"
    hole.touch()
    os.truncate(hole, LEAST_BYTES)
    for shard in weights.list_shards(Host().files, str(folder)):
        page_cache.drop_file_cache(Host(), shard, lambda: True)
    return folder


def cached(path: Path) -> int:
    with path.open("rb") as file:
        cached = page_cache.cached_bytes(file.fileno())
    assert cached is not None, "this kernel has no cachestat"
    return cached


def is_about_a_shard(count_bytes: int) -> bool:
    """No figure of a page cache is exact: the kernel reclaims cold pages by itself (kswapd, DAMON), and keeps those
    that it looks at in that moment.
    """
    return SHARD_BYTES // 2 < count_bytes < SHARD_BYTES * 3 // 2


def is_kept(path: Path) -> bool:
    return is_about_a_shard(cached(path))


class Guarded:
    """A guard over `loader`, in its thread."""

    def __init__(self, model: Path, loader: Loader) -> None:
        self.progress = LoadProgress(step="loading weights")
        self.events = EventLines()
        self.loaded = threading.Event()
        self.rank_ended = threading.Event()
        guard = PageCacheRelease(
            host=Host(),
            model_path=str(model),
            pid=loader.process.pid,
            ended=self.rank_ended,
            progress=lambda: self.progress,
            is_over=lambda: False,
            drop=partial(page_cache.drop_file_cache, Host()),
            on_weights_loaded=self.loaded.set,
            contiguous=ContiguousMemory(Host(), 0, partial(page_cache.compact_memory, Host()), self.events),
            events=self.events,
            pace_seconds=PACE_SECONDS,
        )
        self.thread = threading.Thread(target=guard.run, daemon=True)
        self.thread.start()

    def looks(self, times: int = 3) -> None:
        time.sleep(times * PACE_SECONDS)


@pytest.fixture
def guarded(model: Path, loader: Loader) -> Iterator[Guarded]:
    guarded = Guarded(model, loader)
    yield guarded
    guarded.rank_ended.set()
    guarded.thread.join(5)


@pytest.mark.parametrize("way", ["map", "open"])
def test_exactly_the_finished_shard_is_given_back(model: Path, loader: Loader, guarded: Guarded, way: str) -> None:
    first, second, third = (model / f"m-{number}.safetensors" for number in range(3))
    third.read_bytes()  # as a loader that fetches ahead does
    loader.send(way, first)
    loader.send(way, second)
    guarded.looks()
    assert all(is_kept(shard) for shard in (first, second, third)), "nothing is finished"
    loader.send("close", first)
    until(lambda: cached(first) == 0, 5)
    guarded.looks()
    assert is_kept(second)
    assert is_kept(third)
    guarded.progress = LoadProgress(step="profiling memory")
    until(guarded.loaded.is_set, 5)
    (line,) = guarded.events.lines
    counts, _, size = line.rpartition("=")
    assert counts == "page_cache.shards.dropped shards=1 of=4 bytes"
    assert SHARD_BYTES // 2 < int(size) <= SHARD_BYTES


def test_the_kernel_keeps_mapped_pages_even_on_request(model: Path, loader: Loader) -> None:
    """What the guard rests on where it looked a moment too early."""
    path = model / "m-0.safetensors"
    loader.send("map", path)
    shard = weights.list_shards(Host().files, str(model))[0]
    assert page_cache.drop_file_cache(Host(), shard, lambda: True) < SHARD_BYTES // 2
    assert is_kept(path)


def test_the_load_guard_ends_with_the_rank(loader: Loader, guarded: Guarded) -> None:
    main, pidfd = MainLoop(Notifier(), {}), os.pidfd_open(loader.process.pid)
    main.watch_exit(pidfd, guarded.rank_ended.set)
    loader.end()
    assert main.wait_until(guarded.rank_ended.is_set, 5)
    os.close(pidfd)
    guarded.thread.join(5)
    assert not guarded.thread.is_alive()
    assert guarded.loaded.is_set()


def test_a_step_that_ends_meanwhile_stops_it_between_two_pieces(tmp_path: Path) -> None:
    path = tmp_path / "m.safetensors"
    with path.open("wb") as file:
        file.write(b"x" * SHARD_BYTES)
        os.fsync(file.fileno())
        os.truncate(path, page_cache.PIECE_BYTES + SHARD_BYTES)
        file.seek(page_cache.PIECE_BYTES)
        file.write(b"x" * SHARD_BYTES)
        os.fsync(file.fileno())
    shard = weights.list_shards(Host().files, str(tmp_path))[0]
    calls: list[bool] = []

    def once() -> bool:
        calls.append(True)
        return len(calls) == 1

    assert is_about_a_shard(page_cache.drop_file_cache(Host(), shard, once))
    assert len(calls) == 2, "before each piece, and no more once it is over"
    assert is_about_a_shard(cached(path))


WITHOUT_CACHESTAT = """
import ctypes, struct, sys
from sparkd.agent.actions import page_cache
from sparkd.base.host import Host, weights
from sparkd.base.host.activity import read_activity
program = b"".join(struct.pack("HBBI", *instruction) for instruction in (
    (0x20, 0, 0, 0),  # load the system call's number
    (0x15, 0, 1, 451),  # cachestat?
    (0x06, 0, 0, 0x00050000 | 1),  # EPERM, as the filter of the unit says
    (0x06, 0, 0, 0x7FFF0000),  # allow
))
text = ctypes.create_string_buffer(program, len(program))
filter = struct.pack("HxxxxxxP", len(program) // 8, ctypes.addressof(text))
libc = ctypes.CDLL(None)
assert libc.prctl(38, 1, 0, 0, 0) == 0  # PR_SET_NO_NEW_PRIVS
assert libc.prctl(22, 2, ctypes.create_string_buffer(filter, len(filter)), 0, 0) == 0  # PR_SET_SECCOMP
shard = weights.list_shards(Host().files, sys.argv[1])[0]
with open(shard.path, "rb") as file:
    while file.read(1 << 20): pass
    assert page_cache.cached_bytes(file.fileno()) is None
print(page_cache.drop_file_cache(Host(), shard, lambda: True))
"""


def test_where_the_unit_may_not_inspect_one_file_the_whole_cache_counts(model: Path) -> None:
    """The machine's cache changes by others' doing too: the figure is about right."""
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_CACHESTAT, str(model)],
        env={**os.environ, "PYTHONPATH": f"{REPOSITORY}/src"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert cached(model / "m-0.safetensors") == 0
    assert SHARD_BYTES // 2 < int(done.stdout) < 2 * SHARD_BYTES


# -- readahead


@pytest.fixture
def own_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system on a loop device of the test's own: the machine's disks keep their readahead."""
    image, mount = tmp_path / "disk.img", tmp_path / "models"
    mount.mkdir()
    image.touch()
    os.truncate(image, 32 << 20)
    subprocess.run(["mkfs.ext4", "-q", str(image)], check=True)
    done = subprocess.run(["losetup", "--show", "-f", "-P", str(image)], capture_output=True, text=True, check=True)
    device = done.stdout.strip()
    subprocess.run(["mount", device, str(mount)], check=True)
    yield mount
    subprocess.run(["umount", str(mount)], check=True)
    subprocess.run(["losetup", "-d", device], check=True)


def test_the_disks_readahead_is_lowered_and_given_back(own_disk: Path, tmp_path: Path) -> None:
    host, memory = Host(), tmp_path / "readahead.json"
    path = readahead.find_readahead_setting(host, str(own_disk))
    before = int(host.files.value(path))
    device = subprocess.run(
        ["findmnt", "-no", "SOURCE", str(own_disk)], capture_output=True, text=True, check=True
    ).stdout.strip()

    def sectors() -> int:
        done = subprocess.run(["blockdev", "--getra", device], capture_output=True, text=True, check=True)
        return int(done.stdout)

    readahead.lower_readahead(host, str(own_disk), 8, memory)
    assert sectors() == 16
    readahead.restore_readahead(host, memory)
    assert sectors() == 2 * before
    assert int(host.files.value(path)) == before


@pytest.mark.parametrize("how", ["map", "open"])
def test_pages_that_a_process_faults_in_count_as_read_from_the_disk(model: Path, loader: Loader, how: str) -> None:
    def disk_bytes() -> int:
        return read_activity(Host().files, Host().processes().descendants(loader.process.pid)).disk_bytes

    before = disk_bytes()
    loader.send(how, model / "m-0.safetensors")
    assert is_about_a_shard(disk_bytes() - before)
    before = disk_bytes()
    loader.send("close", model / "m-0.safetensors")
    loader.send("open", model / "m-0.safetensors")
    assert disk_bytes() - before < SHARD_BYTES // 4, "it comes from the page cache"
