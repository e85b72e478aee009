"""The guard over memory: its rule as a table, its process on this machine's kernel and on files that shrink."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import psutil
import pytest
from tests.tree import Tree
from tests.unit.clock import unstalled
from tests.unit.cluster_nodes import EventLines
from tests.unit.nodes import until

from sparkd.agent.engine.memory_guard.guard import MemoryGuard
from sparkd.agent.engine.memory_guard.shortage import (
    FASTEST_BYTES_PER_SECOND,
    LONGEST_SECONDS,
    SAMPLE_COUNT,
    SHORTEST_SECONDS,
    Meter,
    Samples,
    describe_kill,
    is_short,
    pause_seconds,
)
from sparkd.base.lib.errors import MemoryGuardError

MIB, GIB = 1 << 20, 1 << 30
FLOOR = 512 * MIB


@pytest.mark.parametrize(
    ("available", "pressure", "killed"),
    [
        (8 * GIB, 0, False),
        (8 * GIB, 100, False),  # what presses is no lack of memory: a limit of some cgroup
        (FLOOR, 0, False),
        (FLOOR - 1, 0, True),
        (0, 0, True),
        (2 * FLOOR - 1, 29.9, False),
        (2 * FLOOR - 1, 30, True),
        (2 * FLOOR, 100, False),
    ],
)
def test_the_engine_is_killed_below_the_floor_or_below_twice_the_floor_under_pressure(
    available: int, pressure: float, killed: bool
) -> None:
    assert is_short(available, pressure, FLOOR) is killed


@pytest.mark.parametrize(
    ("available", "seconds"),
    [
        (100 * GIB, LONGEST_SECONDS),
        (FLOOR + 5 * GIB, LONGEST_SECONDS),
        (FLOOR + 5 * GIB // 2, 0.5),
        (FLOOR + FLOOR, 0.1),
        (FLOOR + MIB, SHORTEST_SECONDS),
        (FLOOR, SHORTEST_SECONDS),
        (0, SHORTEST_SECONDS),
    ],
)
def test_the_nearer_the_floor_the_shorter_the_pause(available: int, seconds: float) -> None:
    assert pause_seconds(available, FLOOR) == pytest.approx(seconds)


@pytest.mark.parametrize("gib_per_second", [0.1, 0.5, 2.5, 5])
def test_no_burst_takes_more_than_a_fifth_of_the_floor_between_two_reads(gib_per_second: float) -> None:
    available, lowest = 20 * GIB, FLOOR - round(SHORTEST_SECONDS * FASTEST_BYTES_PER_SECOND)
    looks = 0
    while not is_short(available, 0, FLOOR):
        available -= round(pause_seconds(available, FLOOR) * gib_per_second * GIB)
        looks += 1
    assert lowest <= available < FLOOR
    assert FLOOR - lowest < FLOOR / 4
    assert looks < 1000


def write_memory(tree: Tree, kib: int, full: str = "") -> Meter:
    """The meter of a machine with so much available, and with this `avg10` of full pressure."""
    tree.file("/proc/meminfo", f"MemTotal: 9 kB\nMemFree: 1 kB\nMemAvailable:   {kib} kB\nBuffers: 7 kB\n")
    if full:
        tree.file(
            "/proc/pressure/memory", f"some avg10=9.00 avg60=0.00 total=1\nfull avg10={full} avg60=0.00 total=1\n"
        )
    return Meter(f"{tree.root}/proc")


def test_the_meter_reads_what_the_kernel_writes() -> None:
    meter, printed_bytes = Meter("/proc"), 0
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            printed_bytes = int(line.split()[1]) * 1024
    assert abs(meter.available_bytes() - printed_bytes) < 256 * MIB
    assert 0 <= meter.full_avg10() <= 100


def test_the_meter_reads_what_has_changed_since_it_was_made(tree: Tree) -> None:
    meter = write_memory(tree, 1234567)
    assert meter.available_bytes() == 1234567 * 1024
    tree.file("/proc/meminfo", "MemAvailable: 5 kB\n")
    assert meter.available_bytes() == 5 * 1024


@pytest.mark.parametrize(("full", "percent"), [("", 0), ("0.00", 0), ("87.31", 87.31), ("nonsense", 0)])
def test_pressure_may_be_absent(tree: Tree, full: str, percent: float) -> None:
    assert write_memory(tree, 1, full).full_avg10() == percent


@pytest.mark.parametrize("text", ["", "MemFree: 1 kB\n", "MemAvailable: x kB\n", "MemAvailable:"])
def test_a_meminfo_without_the_figure_is_an_error(tree: Tree, text: str) -> None:
    tree.file("/proc/meminfo", text)
    with pytest.raises(ValueError, match=r"MemAvailable|invalid literal"):
        Meter(f"{tree.root}/proc").available_bytes()


def test_the_samples_of_the_last_six_seconds_are_kept_and_the_newest_always() -> None:
    samples = Samples()
    for number in range(1000):
        samples.put(number / 50, number, 0)
    kept = samples.kept()
    assert len(kept) == SAMPLE_COUNT
    assert kept[-1] == (19.98, 999, 0)
    assert kept[-1][0] - kept[0][0] >= 6
    assert all(earlier < later for earlier, later in pairwise(kept))


def test_few_samples_are_all_kept() -> None:
    samples = Samples()
    samples.put(1, 30, 0)
    samples.put(2, 20, 1.26)
    assert samples.kept() == [(1, 30, 0), (2, 20, 1.26)]


def falling(*gib: float, pressure: float = 0) -> list[tuple[float, int, float]]:
    """One sample a second."""
    return [(at, round(value * GIB), pressure) for at, value in enumerate(gib)]


@pytest.mark.parametrize(
    ("samples", "text"),
    [
        pytest.param(
            falling(8, 7.5, 5, 2.5, 0.25, pressure=12),
            "memory ran out: 256 MiB available, below the floor of 512 MiB; the engine was killed (7,680 MiB 3.0 s "
            "before, 5,120 MiB 2.0 s before, 2,560 MiB 1.0 s before; it fell by 2,304 MiB/s, memory pressure 12 %)",
            id="below the floor",
        ),
        pytest.param(
            falling(0.75, pressure=40),
            "memory ran out: 768 MiB available of twice the floor of 512 MiB, and all work stood still for memory; "
            "the engine was killed (it fell by 0 MiB/s, memory pressure 40 %)",
            id="pressed",
        ),
    ],
)
def test_the_samples_are_described_in_one_line(samples: list[tuple[float, int, float]], text: str) -> None:
    assert describe_kill(samples, FLOOR) == text


class Rank:
    """A rank's init, and all that a guard wants of its agent."""

    def __init__(
        self, process: subprocess.Popen[bytes], guard: MemoryGuard, events: EventLines, rung: list[float]
    ) -> None:
        self.process, self.guard, self.events, self.rung = process, guard, events, rung

    def watched(self) -> bool:
        return any(
            line.startswith(("memory_guard.watch.started", "memory_guard.lock.failed")) for line in self.events.lines
        )

    def killed(self) -> MemoryGuardError:
        until(self.guard.over.is_set)
        with pytest.raises(MemoryGuardError) as caught:
            self.guard.raise_if_killed()
        return caught.value


@contextmanager
def guarded(floor_bytes: int, proc: str = "/proc", **answers: Any) -> Iterator[Rank]:
    with subprocess.Popen(["sleep", "60"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        pidfd, events, rung = os.pidfd_open(process.pid), EventLines(), list[float]()
        guard = MemoryGuard(floor_bytes, pidfd, events, lambda: rung.append(time.monotonic()), proc, **answers)
        guard.start()
        try:
            yield Rank(process, guard, events, rung)
        finally:
            guard.close()
            os.close(pidfd)
            process.kill()
    assert guard.over.is_set()


def test_a_rank_is_killed_below_the_floor_and_the_line_has_the_numbers() -> None:
    with guarded(1 << 50) as rank:  # a floor that no machine is above
        assert rank.process.wait(10) == -signal.SIGKILL
        error = rank.killed()
    assert error.code == 16
    assert re.match(r"memory ran out: [\d,]+ MiB available, below the floor of 1,073,741,824 MiB; ", error.reason)
    assert "gpu_memory_utilization" in error.hint
    assert "other work" in error.hint, "somebody else may have taken it"
    assert "memory.floor_mib" in error.hint
    assert rank.rung


def test_a_rank_is_killed_when_memory_falls_below_the_floor(tree: Tree) -> None:
    write_memory(tree, 600 << 10, "0.00")
    with guarded(FLOOR, f"{tree.root}/proc") as rank:
        until(rank.watched)
        time.sleep(0.3)
        assert rank.process.poll() is None
        tree.file("/proc/meminfo", f"MemAvailable: {500 << 10} kB\n")
        began = unstalled()
        assert rank.process.wait(10) == -signal.SIGKILL
        assert unstalled() - began < 1
        error = rank.killed()
    assert "500 MiB available, below the floor of 512 MiB" in error.reason
    assert re.search(r"600 MiB \d\.\d s before", error.reason), "0.2 s on a machine without load"


def test_a_rank_is_killed_above_the_floor_under_pressure(tree: Tree) -> None:
    write_memory(tree, 600 << 10, "55.00")
    with guarded(FLOOR, f"{tree.root}/proc") as rank:
        assert rank.process.wait(10) == -signal.SIGKILL
        error = rank.killed()
    assert "memory pressure 55 %" in error.reason


def test_a_rank_that_ends_by_itself_was_not_killed() -> None:
    with guarded(1) as rank:
        until(rank.watched)
        rank.process.kill()
        until(rank.guard.over.is_set)
        rank.guard.raise_if_killed()
    assert not any("unwatched" in line for line in rank.events.lines)


def killers() -> set[int]:
    """Processes of guards that this process has started."""
    children = psutil.Process().children()
    return {child.pid for child in children if "memory_guard.killer" in command_line(child)}


def command_line(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.NoSuchProcess:
        return ""


def test_a_killed_guard_is_restarted_and_logged() -> None:
    with guarded(1) as rank:
        until(rank.watched)
        (first,) = killers()
        os.kill(first, signal.SIGHUP)  # of a terminal that is closed
        time.sleep(0.2)
        assert killers() == {first}
        os.kill(first, signal.SIGKILL)
        until(lambda: killers() - {first})
        assert rank.process.poll() is None
    assert any(
        line.startswith("memory_guard.watch.failed reason=its process ended with -9") for line in rank.events.lines
    )
    assert not killers()


def test_a_process_that_gives_no_answer_is_ended_and_another_one_started() -> None:
    with guarded(1, boot="import time; time.sleep(60)  # {}: memory_guard.killer", answer_seconds=0.3) as rank:
        until(killers)
        (first,) = killers()
        until(lambda: killers() - {first})
        assert first not in killers()
        assert rank.process.poll() is None
    until(lambda: not killers())


def test_a_machine_whose_memory_cannot_be_read_is_logged_once_and_keeps_its_rank(tree: Tree) -> None:
    with guarded(FLOOR, f"{tree.root}/proc") as rank:
        until(lambda: len(rank.events.lines) > 1)
        time.sleep(1.5)
        assert rank.process.poll() is None
        assert ["meminfo" in line for line in rank.events.lines] == [False, True], "behind the unit's absence"
        assert rank.guard.state == "failed"
        write_memory(tree, 1)  # and is watched as soon as it can be
        assert rank.process.wait(10) == -signal.SIGKILL


@pytest.mark.parametrize("seconds", [0, 0.001, 0.003])
def test_a_guard_that_is_closed_while_its_process_starts_is_over(seconds: float) -> None:
    with subprocess.Popen(["sleep", "60"]) as process:
        pidfd = os.pidfd_open(process.pid)
        guard = MemoryGuard(1, pidfd, EventLines(), lambda: None)
        guard.start()
        try:
            time.sleep(seconds)
            guard.close()
            until(guard.over.is_set, 3)
            assert process.poll() is None
        finally:
            os.close(pidfd)
            process.kill()
    assert not killers()


def test_the_process_of_a_guard_ends_with_the_agent() -> None:
    code = (
        "import os\n"
        "from tests.unit.engine.test_memory_guard import guarded, killers, until\n"
        "with guarded(1) as rank:\n"
        "    until(rank.watched)\n"
        "    (killer,) = killers()\n"
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
        until(rank.watched)
        (pid,) = killers()
        kib = {
            line.split(":")[0]: int(line.split()[1])
            for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
            if line.endswith("kB")
        }
        assert Path(f"/proc/{pid}/comm").read_text() == "sparkd-guard\n"
        locked = any(line.startswith("memory_guard.watch.started") for line in rank.events.lines)
        assert locked or os.geteuid(), rank.events.lines
    assert kib["Pss"] < 8 << 10, kib
    assert not locked or kib["Locked"] > 2 << 10, kib
