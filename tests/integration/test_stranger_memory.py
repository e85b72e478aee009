"""A local user who takes memory is named, however he takes it."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.integration.stranger import UID, Stranger

from sparkd.engine.memory_guard.tenants import describe_growth, read_tenants
from sparkd.host import Host
from sparkd.lib.text import MIB
from sparkd.preflight.checks.memory import MemoryNeed, UnifiedMemory

TAKEN_BYTES = 300 * MIB
PROCESS = """\
import sys, time
held = b"x" * int(sys.argv[1])
print("ready", flush=True)
time.sleep(600)
"""
PROCESSES = """\
import os, sys, time
for _ in range(int(sys.argv[1]) >> 23):
    if os.fork() == 0:
        held = b"x" * (8 << 20)
        print("ready", flush=True)
        time.sleep(600)
time.sleep(600)
"""
FILE = """\
import sys, time
with open(sys.argv[2], "wb") as file:
    file.write(b"x" * int(sys.argv[1]))
print("ready", flush=True)
time.sleep(600)
"""
PAGE_TABLES = """\
import mmap, sys, time
step = 2 << 20  # of one page of tables
held = mmap.mmap(-1, int(sys.argv[1]) // 4096 * step, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x4000)  # NORESERVE
held.madvise(mmap.MADV_NOHUGEPAGE)
for at in range(0, len(held), step):
    held[at]
print("ready", flush=True)
time.sleep(600)
"""


@pytest.fixture
def segment() -> Iterator[Path]:
    path = Path(f"/dev/shm/psm_{secrets.token_hex(4)}")
    yield path
    path.unlink(missing_ok=True)


@pytest.mark.parametrize(
    ("program", "lines", "place"),
    [
        pytest.param(PROCESS, 1, "pid ", id="one process"),
        pytest.param(PROCESSES, TAKEN_BYTES >> 23, "small processes", id="many small ones"),
        pytest.param(FILE, 1, "files in /dev/shm", id="a file that no process maps"),
    ],
)
def test_who_took_the_memory_since_the_launch_is_named(segment: Path, program: str, lines: int, place: str) -> None:
    before = read_tenants(Host(), "")
    with Stranger(program, str(TAKEN_BYTES), str(segment)) as stranger:
        for _ in range(lines):
            stranger.wait_for("ready")
        now = read_tenants(Host(), "")
    assert describe_growth(before, now, 1 << 50) == ""
    assert f"uid {UID} 3" in describe_growth(before, now, 0)
    assert place in describe_growth(before, now, 0)


def test_page_tables_are_not_taken_for_memory_that_the_driver_holds() -> None:
    """That would bring "reboot this node"."""
    check = UnifiedMemory(MemoryNeed(1, None, 0), 60, uses_gpu=False)
    before = check.probe(Host()).process_bytes
    with Stranger(PAGE_TABLES, str(TAKEN_BYTES)) as stranger:
        stranger.wait_for("ready")
        grown = check.probe(Host()).process_bytes - before
    assert grown > TAKEN_BYTES * 0.8
