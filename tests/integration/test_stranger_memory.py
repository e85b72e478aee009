"""A local user who takes memory is named, however he takes it."""

import secrets
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.integration.stranger import UID, Stranger

from sparkd.agent.engine.memory_guard.tenants import Tenants, describe_growth, scan_tenants
from sparkd.agent.preflight.checks.memory import UnifiedMemory
from sparkd.base.config import Settings
from sparkd.base.host import Host
from sparkd.base.lib.text import MIB
from sparkd.base.plan.inputs import MemoryNeed

pytestmark = pytest.mark.alone
TAKEN_BYTES, PAGE_TABLE_BYTES = 600 * MIB, 300 * MIB
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
MEMFD = """\
import os, sys, time
held = os.memfd_create("x")
os.write(held, b"x" * int(sys.argv[1]))
print("ready", flush=True)
time.sleep(600)
"""
MAPPED = """\
import mmap, sys, time
with open(sys.argv[2], "w+b") as file:
    file.truncate(int(sys.argv[1]))
    held = mmap.mmap(file.fileno(), 0)
for at in range(0, len(held), 4096):
    held[at] = 1
print("ready", flush=True)
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


def tenants() -> Tenants:
    info = Host().meminfo()
    return Tenants(info.anonymous_bytes + info.shared_bytes, *scan_tenants(Host(), ""))


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
        pytest.param(MAPPED, 1, "pid ", id="a file that a process maps"),
        pytest.param(MEMFD, 1, "no process has it mapped", id="a file without a name"),
    ],
)
def test_a_user_who_took_memory_since_the_launch_is_named(segment: Path, program: str, lines: int, place: str) -> None:
    before = tenants()
    with Stranger(program, str(TAKEN_BYTES), str(segment)) as stranger:
        for _ in range(lines):
            stranger.wait_for("ready")
        now = tenants()
    taken = now.held_bytes - before.held_bytes
    assert 0.8 * TAKEN_BYTES < taken < 1.5 * TAKEN_BYTES, "once"
    assert not describe_growth(before, now, taken).by_others
    text, by_others = describe_growth(before, now, 0)
    assert by_others
    assert (f": uid {UID} " in text) is (program != MEMFD)
    assert place in text


def test_page_tables_are_not_taken_for_memory_that_the_driver_holds() -> None:
    """That would bring "reboot this node"."""
    check = UnifiedMemory(MemoryNeed(1, None, 0), Settings(), uses_gpu=False)
    before = check.probe(Host()).process_bytes
    with Stranger(PAGE_TABLES, str(PAGE_TABLE_BYTES)) as stranger:
        stranger.wait_for("ready")
        grown = check.probe(Host()).process_bytes - before
    assert grown > PAGE_TABLE_BYTES * 0.8
