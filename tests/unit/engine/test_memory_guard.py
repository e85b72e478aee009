"""A guard with a process of its own, on this machine's kernel and on files that shrink: when the rank is killed."""

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.tree import Tree
from tests.unit.clock import unstalled
from tests.unit.cluster_nodes import EventLines
from tests.unit.engine.guard_processes import find_killers, is_watching
from tests.unit.nodes import until

from sparkd.agent.engine.memory_guard.guard import ANSWER_SECONDS, BOOT, MemoryGuard
from sparkd.base.lib.errors import MemoryGuardError

FLOOR = 512 << 20


def write_memory(tree: Tree, mib: int, full: str = "0.00") -> None:
    """A machine with so much available, and with this `avg10` of full pressure."""
    tree.file("/proc/meminfo", f"MemAvailable: {mib << 10} kB\n")
    tree.file("/proc/pressure/memory", f"full avg10={full} avg60=0.00 total=1\n")


@dataclass(frozen=True)
class GuardedRank:
    """A rank's init, its guard, and what that did."""

    process: subprocess.Popen[bytes]
    guard: MemoryGuard
    events: EventLines
    woken: threading.Event

    def is_watched(self) -> bool:
        return is_watching(self.guard)

    def await_kill(self) -> MemoryGuardError:
        until(self.guard.over.is_set)
        with pytest.raises(MemoryGuardError) as caught:
            self.guard.raise_if_killed()
        return caught.value


@contextmanager
def guarded(
    floor_bytes: int, proc: str = "/proc", boot: str = BOOT, answer_seconds: float = ANSWER_SECONDS
) -> Iterator[GuardedRank]:
    with subprocess.Popen(["sleep", "60"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        pidfd, events, woken = os.pidfd_open(process.pid), EventLines(), threading.Event()
        guard = MemoryGuard(floor_bytes, pidfd, events, woken.set, proc, boot=boot, answer_seconds=answer_seconds)
        guard.start()
        try:
            yield GuardedRank(process, guard, events, woken)
        finally:
            guard.close()
            os.close(pidfd)
            process.kill()
    assert guard.over.is_set()


def test_a_rank_is_killed_below_the_floor_and_the_line_has_the_numbers() -> None:
    with guarded(1 << 50) as rank:  # a floor that no machine is above
        assert rank.process.wait(10) == -signal.SIGKILL
        error = rank.await_kill()
    assert error.code == 16
    assert re.match(r"memory ran out: [\d,]+ MiB available, below the floor of 1,073,741,824 MiB; ", error.reason)
    assert "gpu_memory_utilization" in error.hint
    assert "other work" in error.hint, "somebody else may have taken it"
    assert "memory.floor_mib" in error.hint
    assert rank.woken.is_set()


def test_a_rank_is_killed_when_memory_falls_below_the_floor(tree: Tree) -> None:
    write_memory(tree, 600)
    with guarded(FLOOR, f"{tree.root}/proc") as rank:
        until(rank.is_watched)
        time.sleep(0.3)
        assert rank.process.poll() is None
        write_memory(tree, 500)
        began = unstalled()
        assert rank.process.wait(10) == -signal.SIGKILL
        assert unstalled() - began < 1
        error = rank.await_kill()
    assert "500 MiB available, below the floor of 512 MiB" in error.reason
    assert re.search(r"600 MiB \d\.\d s before", error.reason), "0.2 s on a machine without load"


def test_a_rank_is_killed_above_the_floor_under_pressure(tree: Tree) -> None:
    write_memory(tree, 600, "55.00")
    with guarded(FLOOR, f"{tree.root}/proc") as rank:
        assert rank.process.wait(10) == -signal.SIGKILL
        error = rank.await_kill()
    assert "memory pressure 55 %" in error.reason


def test_a_rank_that_ends_by_itself_was_not_killed() -> None:
    with guarded(1) as rank:
        until(rank.is_watched)
        rank.process.kill()
        until(rank.guard.over.is_set)
        rank.guard.raise_if_killed()
    assert not any(line.startswith("memory_guard.watch.failed") for line in rank.events.lines)


def test_a_killed_guard_is_restarted_and_logged() -> None:
    with guarded(1) as rank:
        until(rank.is_watched)
        (first,) = find_killers()
        os.kill(first, signal.SIGHUP)  # of a terminal that is closed
        time.sleep(0.2)
        assert find_killers() == {first}
        os.kill(first, signal.SIGKILL)
        until(lambda: find_killers() - {first})
        assert rank.process.poll() is None
    assert any(
        line.startswith("memory_guard.watch.failed reason=its process ended with -9") for line in rank.events.lines
    )
    assert not find_killers()


def test_a_process_that_gives_no_answer_is_ended_and_another_one_started() -> None:
    with guarded(1, boot="import time; time.sleep(60)  # {}: memory_guard.killer", answer_seconds=0.3) as rank:
        until(find_killers)
        (first,) = find_killers()
        until(lambda: find_killers() - {first})
        assert first not in find_killers()
        assert rank.process.poll() is None
    until(lambda: not find_killers())


def test_a_machine_whose_memory_cannot_be_read_is_logged_once_and_keeps_its_rank(tree: Tree) -> None:
    with guarded(FLOOR, f"{tree.root}/proc") as rank:
        until(lambda: len(rank.events.lines) > 1)
        time.sleep(1.5)
        assert rank.process.poll() is None
        assert ["meminfo" in line for line in rank.events.lines] == [False, True], "behind the unit's absence"
        assert rank.guard.state == "failed"
        write_memory(tree, 0)  # and is watched as soon as it can be
        assert rank.process.wait(10) == -signal.SIGKILL


@pytest.mark.parametrize("seconds", [0, 0.001, 0.003])
def test_a_guard_that_is_closed_while_its_process_starts_is_over(seconds: float) -> None:
    with guarded(1) as rank:
        time.sleep(seconds)
        rank.guard.close()
        until(rank.guard.over.is_set, 3)
        assert rank.process.poll() is None
    assert not find_killers()


def test_the_process_of_a_guard_ends_with_the_agent() -> None:
    code = (
        "import os\n"
        "from tests.unit.engine.guard_processes import find_killers\n"
        "from tests.unit.engine.test_memory_guard import guarded, until\n"
        "with guarded(1) as rank:\n"
        "    until(rank.is_watched)\n"
        "    (killer,) = find_killers()\n"
        "    print(killer, rank.process.pid, flush=True)\n"
        "    os.kill(os.getpid(), 9)\n"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60)
    killer, sleeper = (int(word) for word in ended.stdout.split())
    try:
        until(lambda: not Path(f"/proc/{killer}/cmdline").exists() or not Path(f"/proc/{killer}/cmdline").read_text())
    finally:
        os.kill(sleeper, signal.SIGKILL)


def test_the_process_of_a_guard_is_small_and_locked() -> None:
    with guarded(1) as rank:
        until(rank.is_watched)
        (pid,) = find_killers()
        kib = {
            line.split(":")[0]: int(line.split()[1])
            for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
            if line.endswith("kB")
        }
        assert Path(f"/proc/{pid}/comm").read_text() == "sparkd-guard\n"
        locked = rank.guard.state == "watching"
        assert locked or os.geteuid(), rank.events.lines
    assert kib["Pss"] < 8 << 10, kib
    assert not locked or kib["Locked"] > 2 << 10, kib
