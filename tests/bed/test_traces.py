"""Nothing of a bed stays on this machine: not after its end, and not after its owner was killed."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.bed import Bed, registry
from tests.bed.cgroups import PREFIX
from tests.bed.processes import Identity, command_line, wait_for
from tests.bed.space import environment

OWNER = """
import time
from tests.bed import Bed
with Bed() as bed:
    node = bed.node()
    node.boot()
    node.sh("docker run -d --name sleeper sparkd-test/busybox:1 sleep 9999")
    print(bed.name, flush=True)
    time.sleep(9999)
"""


def traces(name: str) -> list[str]:
    """Of the bed of this name: processes, mounts, loop devices, groups, notes."""
    loops = subprocess.run(["losetup", "--noheadings", "--output", "NAME,BACK-FILE"], capture_output=True, text=True)
    lines = [line for line in loops.stdout.splitlines() if f"/{name}/" in line]
    lines += [line for line in Path("/proc/self/mountinfo").read_text().splitlines() if name in line]
    groups = Path("/sys/fs/cgroup")
    lines += [str(path) for pattern in ("*", "*/*") for path in groups.glob(pattern) if name in path.name]
    lines += [str(path) for path in [registry.HOME / name] if path.exists()]
    pids = [int(path.name) for path in Path("/proc").glob("[0-9]*")]
    return lines + [f"{pid} {command_line(pid)}" for pid in pids if name in command_line(pid) or in_group(pid, name)]


def in_group(pid: int, name: str) -> bool:
    try:
        return PREFIX + name in Path(f"/proc/{pid}/cgroup").read_text()
    except OSError:
        return False


def network() -> set[str]:
    """This machine's interfaces and named network namespaces."""
    named = Path("/run/netns")
    return set(os.listdir("/sys/class/net")) | (
        {f"netns {path.name}" for path in named.iterdir()} if named.exists() else set()
    )


def test_the_end_of_a_bed_leaves_nothing() -> None:
    before = network()
    with Bed() as bed:
        bed.node("spark1").boot()
        bed.node("spark2").boot()
        assert traces(bed.name)
        assert network() == before
    assert traces(bed.name) == []
    assert network() == before


def test_an_error_in_a_test_leaves_nothing() -> None:
    with pytest.raises(ZeroDivisionError), Bed() as bed:
        bed.node("spark1").boot()
        raise ZeroDivisionError
    assert traces(bed.name) == []


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_the_death_of_the_owner_leaves_nothing_but_a_note_for_reap(number: signal.Signals) -> None:
    owner = subprocess.Popen([sys.executable, "-c", OWNER], stdout=subprocess.PIPE, text=True, env=environment())
    assert owner.stdout is not None
    name = owner.stdout.readline().strip()
    (entry,) = (entry for entry in registry.entries() if entry.name == name)
    assert entry.keeper is not None
    keeper: Identity = entry.keeper
    owner.send_signal(number)
    owner.wait()
    owner.stdout.close()
    wait_for(lambda: not keeper.alive, 20, "the keeper's end")
    wait_for(lambda: not [line for line in traces(name) if re.match(r"/dev/loop|\d+ ", line)], 10, "the last of it")
    assert name in registry.reap()
    assert traces(name) == []


def test_disks_of_killed_beds_leave_the_pool(bed: Bed) -> None:
    bed.space.run("mkdir", "-p", "/run/bed/pool/runs/dead0000")
    with Bed():
        assert "dead0000" not in bed.space.run("ls", "/run/bed/pool/runs").stdout.split()
