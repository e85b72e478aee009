"""When memory is too short, how often it is read, and what is kept and said of its last seconds."""

from itertools import pairwise
from pathlib import Path

import pytest
from tests.tree import Tree

from sparkd.agent.engine.memory_guard.shortage import (
    FASTEST_BYTES_PER_SECOND,
    LONGEST_SECONDS,
    MIB,
    SAMPLE_COUNT,
    SHORTEST_SECONDS,
    Meter,
    Samples,
    describe_kill,
    is_short,
    pause_seconds,
)
from sparkd.base.lib.text import GIB

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
