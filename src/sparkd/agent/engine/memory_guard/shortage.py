"""When memory is too short, how often to look, and the readings of the last seconds, without allocating.

The killer process imports it: no dataclasses, which would add 2.3 MB to its 4, and nothing of sparkd's.
"""

from __future__ import annotations

import os
from array import array

MIB = 1 << 20

FASTEST_BYTES_PER_SECOND = 5 << 30
"""Assumed maximum: twice the rate seen on GB10, where 7.4 GiB went in 3 s."""
SHORTEST_SECONDS = 0.02
"""At the maximum rate 100 MiB between two reads: a fifth of the default floor. A read takes 10 to 20 µs."""
LONGEST_SECONDS = 1.0
PRESSED_PERCENT = 30.0
"""Share of the last ten seconds in which all work waited for memory: then twice the floor is the limit."""

SAMPLE_COUNT = 64
SAMPLE_SECONDS = 0.1
"""Pause between kept samples: together they span 6 s or more."""
AGES = (5.0, 3.0, 2.0, 1.0, 0.5, 0.2)
"""The quoted samples, in seconds before the kill."""

_AVAILABLE = b"MemAvailable:"
_FULL = b"full avg10="


def is_short(available_bytes: int, full_avg10: float, floor_bytes: int) -> bool:
    pressed = full_avg10 >= PRESSED_PERCENT and available_bytes < 2 * floor_bytes
    return available_bytes < floor_bytes or pressed


def pause_seconds(available_bytes: int, floor_bytes: int) -> float:
    """Pause until the next read: at the maximum rate memory reaches the floor in this time."""
    return min(LONGEST_SECONDS, max(SHORTEST_SECONDS, (available_bytes - floor_bytes) / FASTEST_BYTES_PER_SECOND))


class Meter:
    """Reads MemAvailable and memory pressure without allocating: the files stay open, and share one buffer.

    Raises OSError and ValueError where available memory is unreadable. Pressure is 0 where the kernel has none.
    """

    def __init__(self, proc: str) -> None:
        self._meminfo = os.open(f"{proc}/meminfo", os.O_RDONLY | os.O_CLOEXEC)
        try:
            self._pressure = os.open(f"{proc}/pressure/memory", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            self._pressure = -1
        self._buffer = bytearray(4096)
        self._into = [self._buffer]

    def available_bytes(self) -> int:
        size = os.preadv(self._meminfo, self._into, 0)
        start = self._buffer.find(_AVAILABLE, 0, size)
        end = self._buffer.find(b"kB", start, size)
        if start < 0 or end < 0:
            raise ValueError("/proc/meminfo has no MemAvailable")
        return int(self._buffer[start + len(_AVAILABLE) : end]) * 1024

    def full_avg10(self) -> float:
        """Percent of the last ten seconds in which everything that had work waited for memory."""
        try:
            size = os.preadv(self._pressure, self._into, 0)
            start = self._buffer.find(_FULL, 0, size)
            return float(self._buffer[start + len(_FULL) : self._buffer.find(b" ", start + len(_FULL), size)])
        except (OSError, ValueError):
            return 0.0


class Samples:
    """The last samples (when, available bytes, pressure), in preallocated memory."""

    def __init__(self) -> None:
        self._when = array("d", bytes(8 * SAMPLE_COUNT))
        self._available = array("q", bytes(8 * SAMPLE_COUNT))
        self._pressure = array("d", bytes(8 * SAMPLE_COUNT))
        self._count = 0

    def put(self, when: float, available_bytes: int, full_avg10: float) -> None:
        """Keep it. It overwrites the last one, where that came less than SAMPLE_SECONDS after the one before it."""
        last, before = (self._count - 1) % SAMPLE_COUNT, (self._count - 2) % SAMPLE_COUNT
        place = last
        if self._count < 2 or self._when[last] - self._when[before] >= SAMPLE_SECONDS:
            place = self._count % SAMPLE_COUNT
            self._count += 1
        self._when[place] = when
        self._available[place] = available_bytes
        self._pressure[place] = full_avg10

    def kept(self) -> list[tuple[float, int, float]]:
        """Oldest first."""
        places = [number % SAMPLE_COUNT for number in range(max(0, self._count - SAMPLE_COUNT), self._count)]
        return [(self._when[i], self._available[i], self._pressure[i]) for i in places]


def describe_kill(samples: list[tuple[float, int, float]], floor_bytes: int) -> str:
    """One line: the memory left, the floor, and the last samples."""
    at, available, pressure = samples[-1]
    floor = f"the floor of {floor_bytes // MIB:,} MiB"
    left = f"{available // MIB:,} MiB available"
    if available >= floor_bytes:
        left += f" of twice {floor}, and all work stood still for memory"
    else:
        left += f", below {floor}"
    at_least = ([sample for sample in samples if at - sample[0] >= age] for age in AGES)
    quoted = dict.fromkeys(older[-1] for older in at_least if older)  # the youngest of each age, each sample once
    history = ", ".join(f"{earlier // MIB:,} MiB {at - when:.1f} s before" for when, earlier, _ in quoted)
    # The rate of loss is that of the last tenth of a second or more.
    began, before, _ = next((sample for sample in reversed(samples) if at - sample[0] >= SAMPLE_SECONDS), samples[0])
    rate = max(0.0, (before - available) / (at - began)) if at > began else 0.0
    return (
        f"memory ran out: {left}; the engine was killed ({history}{'; ' if history else ''}"
        f"it fell by {rate / MIB:,.0f} MiB/s, memory pressure {pressure:.0f} %)"
    )
