"""A process whose first thread has ended, as in an engine that calls pthread_exit: the kernel shows it as a zombie."""

import os
import secrets
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from sparkd.agent.actions.segments import find_own_segments, unlink_segment
from sparkd.agent.preflight.checks.shared_memory import NAMES
from sparkd.agent.preflight.fixes import UnlinkSegment
from sparkd.base.host import Host
from sparkd.base.host.processes import Process, read_process

PROCESS = """
import ctypes, mmap, sys, threading, time

def hold():
    path, how = sys.argv[1:]
    file = open(path, "wb+")
    file.truncate(4096)
    if how == "mapped":
        area = mmap.mmap(file.fileno(), 4096)
    if how != "open":
        file.close()
    print("up", flush=True)
    time.sleep(600)

threading.Thread(target=hold).start()
ctypes.CDLL(None).pthread_exit(None)
"""


@contextmanager
def holder(how: str) -> Iterator[tuple[Process, Path]]:
    """The process, and a segment of its own: open, mapped or neither."""
    path = Path(f"/dev/shm/psm_{secrets.token_hex(4)}")
    process = subprocess.Popen([sys.executable, "-c", PROCESS, str(path), how], stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == b"up\n"
        deadline = time.monotonic() + 10
        while (zombie := read_process(Host().files, process.pid)) is None or zombie.state != "Z":
            assert time.monotonic() < deadline
            time.sleep(0.01)
        assert not Path(f"/proc/{process.pid}/maps").read_bytes()
        yield zombie, path
    finally:
        process.kill()
        process.wait()
        path.unlink(missing_ok=True)


@pytest.mark.parametrize("how", ["open", "mapped"])
def test_a_segment_that_its_other_threads_have_open_or_mapped_is_in_use(how: str) -> None:
    with holder(how) as (process, path):
        (fix,) = find_own_segments(Host(), process.pid, process.start_time)
        assert fix.path == str(path)
        applied = unlink_segment(fix, Host())
        assert (applied.state, applied.note) == ("stale", f"in use again by pid {process.pid}")
        assert path.exists()


def test_a_segment_that_it_does_not_use_is_not_in_use() -> None:
    with holder("neither") as (process, path):
        uses = Host().segment_uses((process,), Host().segments(NAMES))
        assert (uses.used, uses.unreadable_pids) == ((), ())
        assert UnlinkSegment(str(path), path.stat().st_dev, path.stat().st_ino) not in find_own_segments(
            Host(), process.pid
        )


def test_once_all_threads_have_ended_it_uses_nothing() -> None:
    with holder("mapped") as (process, _):
        os.kill(process.pid, 9)
        deadline = time.monotonic() + 10
        while len(os.listdir(f"/proc/{process.pid}/task")) > 1:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        uses = Host().segment_uses((process,), Host().segments(NAMES))  # as it was before
        assert (uses.used, uses.unreadable_pids) == ((), ())
