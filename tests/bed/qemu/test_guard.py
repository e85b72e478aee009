"""The memory guard under real shortage: a machine that works from swap, and one that has none."""

import json
import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import pytest
from tests.bed.processes import wait_for
from tests.bed.qemu.machine import Machine
from tests.bed.qemu.pair import Pair
from tests.bed.space import REPOSITORY

pytestmark = [pytest.mark.whole, pytest.mark.timeout(1800)]

PROGRAMS = Path(__file__).parents[1] / "programs"
RESULT = REPOSITORY / "build/guard-swap.json"
RUNS = 5
FLOOR_MIB = 64
"""Of a machine that has 1 GiB."""
MORE_THAN_ALL_MIB = 1100
DISK_OPERATIONS = 100
"""A second. A disk as fast as this machine's memory, under a CPU that is emulated, makes nobody wait."""
CALM_PERCENT = 2.0
GROUP, GROUP_MIB, GROUP_WANTS_MIB = "/sys/fs/cgroup/limited", 150, 185


@pytest.fixture(scope="module")
def machine(pair: Pair) -> Iterator[Machine]:
    for name in ("guarded.py", "eater.py", "thrash.py"):
        pair.head.write(f"/root/programs/{name}", (PROGRAMS / name).read_bytes())
    pair.head.sh("fallocate -l 1G /swap && chmod 600 /swap && mkswap -q /swap")
    pair.head.sh(f"mkdir {GROUP} && echo {GROUP_MIB}M > {GROUP}/memory.max")
    yield pair.head
    pair.head.sh(f"swapoff -a; rm /swap; rmdir {GROUP}")


@dataclass(frozen=True)
class Ending:
    caught: bool
    reason: str
    oom_kills: int

    @property
    def pressure(self) -> int:
        found = re.search(r"memory pressure (\d+) %", self.reason)
        return int(found[1]) if found else 0


def oom_kills(machine: Machine) -> int:
    return int(machine.sh("grep -w oom_kill /proc/vmstat").stdout.split()[1])


def full_avg10(machine: Machine) -> float:
    return float(machine.sh("grep full /proc/pressure/memory").stdout.split()[1].removeprefix("avg10="))


def available_mib(machine: Machine) -> int:
    return int(machine.sh("grep MemAvailable /proc/meminfo").stdout.split()[1]) >> 10


def guarded(machine: Machine, floor_mib: int, *program: str) -> Ending:
    """A stand-in for a rank runs the program under sparkd's guard, until one of them ends."""
    wait_for(lambda: full_avg10(machine) < CALM_PERCENT, 180, "the pressure of the last run to be over", pause=1)
    before = oom_kills(machine)
    run = ("systemd-run", "--pipe", "--wait", "--collect", "--quiet")
    done = machine.run(*run, "python3", "-IBS", "/root/programs/guarded.py", str(floor_mib), *program, timeout=400)
    outcome = json.loads(done.stdout.splitlines()[-1])
    return Ending(outcome["caught"], outcome["event"], oom_kills(machine) - before)


def note(name: str, endings: list[Ending]) -> None:
    table = json.loads(RESULT.read_text()) if RESULT.exists() else {}
    RESULT.parent.mkdir(exist_ok=True)
    RESULT.write_text(json.dumps(table | {name: [asdict(one) for one in endings]}, indent=1) + "\n")


def test_without_swap_it_comes_before_the_kernel(machine: Machine) -> None:
    endings = [guarded(machine, FLOOR_MIB, "/root/programs/eater.py", "5") for _ in range(RUNS)]
    note("no swap", endings)
    assert all(one.caught for one in endings), endings
    assert sum(one.oom_kills for one in endings) == 0


def test_with_swap_the_floor_is_passed_before_all_work_stands_still(machine: Machine) -> None:
    machine.run("swapon", "/swap")
    try:
        endings = [guarded(machine, FLOOR_MIB, "/root/programs/thrash.py", str(MORE_THAN_ALL_MIB)) for _ in range(RUNS)]
    finally:
        machine.run("swapoff", "/swap")
    note("swap", endings)
    assert all(one.caught for one in endings), endings
    assert sum(one.oom_kills for one in endings) == 0


def test_above_the_floor_it_kills_where_all_work_stands_still_for_memory(machine: Machine) -> None:
    """A rank that has reached its own limit works from swap, while the machine has between one and two floors left."""
    machine.run("swapon", "/swap")
    machine.slow_disk(DISK_OPERATIONS)
    try:
        floor_mib = round(0.6 * available_mib(machine))
        rank = ("/root/programs/thrash.py", str(GROUP_WANTS_MIB), GROUP)
        endings = [guarded(machine, floor_mib, *rank) for _ in range(RUNS)]
    finally:
        machine.slow_disk(0)
        machine.run("swapoff", "/swap")
    note("pressure", endings)
    assert all(one.caught for one in endings), endings
    assert all("of twice the floor" in one.reason and one.pressure >= 30 for one in endings), endings
    assert sum(one.oom_kills for one in endings) == 0
