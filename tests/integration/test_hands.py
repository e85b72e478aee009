"""Actions on real processes and real segments of this machine, all of the test's own making."""

import ctypes
import mmap
import os
import re
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from sparkd.agent.actions import Actions, files, processes, segments
from sparkd.agent.preflight.fixes import CompactMemory, DropPageCache, EndProcess, UnlinkSegment
from sparkd.base.host import Host
from sparkd.base.host.owner import NodeOwner
from sparkd.base.lib.main_loop import MainLoop
from sparkd.base.lib.systemd import Notifier

STUBBORN = (
    "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(600)"
)
POLITE = "import time; print('up', flush=True); time.sleep(600)"


@pytest.fixture
def loop() -> MainLoop:
    return MainLoop(Notifier(), {})


@pytest.fixture
def victims() -> Iterator[list[subprocess.Popen[bytes]]]:
    started: list[subprocess.Popen[bytes]] = []
    yield started
    for process in started:
        process.kill()
        process.wait()


def start(victims: list[subprocess.Popen[bytes]], code: str) -> subprocess.Popen[bytes]:
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    victims.append(process)
    assert process.stdout is not None
    assert process.stdout.readline() == b"up\n"
    return process


def fix_for(pid: int) -> EndProcess:
    process = Host().processes().get(pid)
    assert process is not None
    return EndProcess(pid, process.start_time, process.comm)


def test_a_process_that_listens_ends_by_sigterm(victims: list[subprocess.Popen[bytes]]) -> None:
    process = start(victims, POLITE)
    applied = processes.end_process(fix_for(process.pid))
    assert (applied.state, applied.note) == ("applied", "ended by SIGTERM")
    assert process.wait() == -signal.SIGTERM


def test_a_process_that_does_not_listen_is_killed_after_its_grace(victims: list[subprocess.Popen[bytes]]) -> None:
    process = start(victims, STUBBORN)
    begun = time.monotonic()
    applied = processes.end_process(fix_for(process.pid))
    assert (applied.state, applied.note) == ("applied", "ended by SIGKILL")
    assert processes.GRACE_SECONDS <= time.monotonic() - begun < processes.GRACE_SECONDS + 2
    assert process.wait() == -signal.SIGKILL


def test_another_process_under_the_same_pid_is_left_alone(victims: list[subprocess.Popen[bytes]]) -> None:
    process = start(victims, POLITE)
    fix = fix_for(process.pid)
    applied = processes.end_process(EndProcess(fix.pid, fix.start_time - 1, fix.comm))
    assert applied.state == "stale"
    assert process.poll() is None


def test_pid_1_and_below_are_never_ended() -> None:
    for pid in (1, 0, -1):
        assert processes.end_process(EndProcess(pid, 0, "init")).state == "failed"


@pytest.fixture
def segment() -> Iterator[Path]:
    path = Path(f"/dev/shm/psm_{secrets.token_hex(4)}")
    path.write_bytes(b"x" * 4096)
    yield path
    path.unlink(missing_ok=True)


def unlink_fix(path: Path) -> UnlinkSegment:
    facts = path.stat()
    return UnlinkSegment(str(path), facts.st_dev, facts.st_ino)


def test_an_orphaned_segment_is_unlinked(segment: Path) -> None:
    # In a PID namespace of its own: a process of this machine that may not be inspected (the first process of a
    # sandbox, say) would rightly make sparkd keep the segment.
    fix = unlink_fix(segment)
    code = (
        "from sparkd.agent.actions import segments; from sparkd.base.host import Host;"
        "from sparkd.agent.preflight.fixes import *;"
        f"print(segments.unlink_segment({fix!r}, Host()).state)"
    )
    alone = ("unshare", "--pid", "--fork", "--mount-proc", sys.executable, "-c", code)
    assert subprocess.run(alone, capture_output=True, text=True, check=True).stdout == "applied\n"
    assert not segment.exists()


def test_a_segment_that_somebody_opened_again_is_kept(segment: Path) -> None:
    fix = unlink_fix(segment)
    with segment.open("rb"):
        applied = segments.unlink_segment(fix, Host())
    assert applied.state == "stale"
    assert f"pid {os.getpid()}" in applied.note
    assert segment.exists()


def test_another_file_under_the_same_name_is_kept(segment: Path) -> None:
    fix = unlink_fix(segment)
    replacement = segment.with_name(f"psm_{secrets.token_hex(4)}")
    replacement.write_bytes(b"other")
    replacement.rename(segment)
    assert segments.unlink_segment(fix, Host()).state == "stale"
    assert segment.read_bytes() == b"other"


@pytest.mark.parametrize("path", ["/etc/passwd", "/dev/shm/../../etc/passwd", "/dev/shm/sub/x", "/dev/shm/.."])
def test_nothing_outside_dev_shm_is_ever_unlinked(path: str) -> None:
    assert segments.unlink_segment(UnlinkSegment(path, 0, 0), Host()).state == "failed"


def test_the_owner_is_seen_without_touching_the_lock(loop: MainLoop) -> None:
    actions = Actions.acquire(Host(), loop, NodeOwner(os.getpid(), "sparkd run --role head", "a" * 32))
    try:
        owner = Host().owner()
        assert owner is not None
        assert (owner.pid, owner.command, owner.invocation) == (os.getpid(), "sparkd run --role head", "a" * 32)
    finally:
        actions.release()
    assert Host().owner() is None


def test_a_file_is_replaced_whole_and_leaves_no_litter(tmp_path: Path) -> None:
    path = tmp_path / "state" / "launch-history.json"
    files.write(path, "one", 0o644, durable=True)
    files.write(path, "two", 0o600, durable=False)
    assert path.read_text() == "two"
    assert path.stat().st_mode & 0o777 == 0o600
    assert [p.name for p in path.parent.iterdir()] == ["launch-history.json"]


def cached_bytes(path: Path) -> int:
    """How much of the file the page cache holds, by mincore(2)."""
    size = path.stat().st_size
    resident = (ctypes.c_ubyte * (size // mmap.PAGESIZE))()
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long)
    with path.open("rb") as file:
        at = ctypes.c_void_p(libc.mmap(None, size, mmap.PROT_READ, mmap.MAP_SHARED, file.fileno(), 0))
        assert libc.mincore(at, ctypes.c_size_t(size), resident) == 0
        libc.munmap(at, ctypes.c_size_t(size))
    return sum(flag & 1 for flag in resident) * mmap.PAGESIZE


def test_the_page_cache_of_this_very_machine_is_given_back(tmp_path: Path, loop: MainLoop) -> None:
    path = tmp_path / "shard"
    path.write_bytes(os.urandom(32 << 20))
    assert cached_bytes(path) == 32 << 20
    actions = Actions.acquire(Host(), loop, NodeOwner(os.getpid(), "a test", "a" * 32))
    try:
        applied = actions.apply(DropPageCache())
    finally:
        actions.release()
    assert applied.state == "applied", applied.note
    assert cached_bytes(path) == 0


def test_this_very_kernel_compacts_its_memory_where_too_little_is_free_in_large_blocks(loop: MainLoop) -> None:
    def scanned() -> int:
        counter = re.search(r"^compact_migrate_scanned (\d+)$", Path("/proc/vmstat").read_text(), re.MULTILINE)
        assert counter is not None, "this kernel has no compaction"
        return int(counter[1])

    actions = Actions.acquire(Host(), loop, NodeOwner(os.getpid(), "a test", "a" * 32))
    try:
        before = scanned()
        assert actions.apply(CompactMemory(wanted_bytes=1)).state == "stale"
        stale = scanned()
        applied = actions.apply(CompactMemory(wanted_bytes=1 << 50))
    finally:
        actions.release()
    assert applied.state == "applied", applied.note
    assert "free in large blocks before" in applied.note
    assert before == stale < scanned()
