"""When memory is too short, how often it is read, and the samples of the last seconds, without allocating.

The killer process imports this module. So it imports no dataclasses, which would add 2.3 MB to its 4, and nothing of
sparkd's.
"""

import os
from array import array

MIB = 1 << 20

FASTEST_BYTES_PER_SECOND = 5 << 30
"""Assumed maximum of the rate at which memory is taken: twice that seen on GB10, where 7.4 GiB went in 3 s."""
SHORTEST_SECONDS = 0.02
"""Shortest pause between two reads. At the maximum rate 100 MiB go in it: a fifth of the default floor. A read takes
10 to 20 µs."""
LONGEST_SECONDS = 1.0
"""Longest pause between two reads."""
PRESSED_PERCENT = 30.0
"""Share of the last ten seconds in which all work waited for memory, from which twice the floor is the limit."""

SAMPLE_COUNT = 64
SAMPLE_SECONDS = 0.1
"""Least time between two samples: together they span 6 s or more."""
AGES = (5.0, 3.0, 2.0, 1.0, 0.5, 0.2)
"""Ages of the samples that are quoted, in seconds before the kill."""

_AVAILABLE = b"MemAvailable:"
_FULL = b"full avg10="


def is_short(available_bytes: int, full_avg10: float, floor_bytes: int) -> bool:
    """Whether the rank is to be killed. `full_avg10`: percent, as `Meter` reads it."""
    is_pressed = full_avg10 >= PRESSED_PERCENT and available_bytes < 2 * floor_bytes
    return available_bytes < floor_bytes or is_pressed


def pause_seconds(available_bytes: int, floor_bytes: int) -> float:
    """Pause until the next read: at the maximum rate memory reaches the floor in this time."""
    return min(LONGEST_SECONDS, max(SHORTEST_SECONDS, (available_bytes - floor_bytes) / FASTEST_BYTES_PER_SECOND))


class Meter:
    """Reads MemAvailable and memory pressure without allocating: the files stay open, and share one buffer.

    Raises OSError and ValueError where MemAvailable is unreadable; an unreadable pressure is 0.
    """

    def __init__(self, proc: str) -> None:
        self._meminfo = os.open(f"{proc}/meminfo", os.O_RDONLY | os.O_CLOEXEC)
        try:
            self._pressure = os.open(f"{proc}/pressure/memory", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            self._pressure = -1
        self._buffer = bytearray(4096)
        self._buffers = [self._buffer]

    def available_bytes(self) -> int:
        size = os.preadv(self._meminfo, self._buffers, 0)
        start = self._buffer.find(_AVAILABLE, 0, size)
        end = self._buffer.find(b"kB", start, size)
        if start < 0 or end < 0:
            raise ValueError("/proc/meminfo has no MemAvailable")
        return int(self._buffer[start + len(_AVAILABLE) : end]) * 1024

    def full_avg10(self) -> float:
        """Percent of the last ten seconds in which everything that had work waited for memory."""
        try:
            size = os.preadv(self._pressure, self._buffers, 0)
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
        """Keep a sample. It replaces the last one, if that came less than SAMPLE_SECONDS after the one before."""
        last_place, place_before = (self._count - 1) % SAMPLE_COUNT, (self._count - 2) % SAMPLE_COUNT
        place = last_place
        if self._count < 2 or self._when[last_place] - self._when[place_before] >= SAMPLE_SECONDS:
            place = self._count % SAMPLE_COUNT
            self._count += 1
        self._when[place] = when
        self._available[place] = available_bytes
        self._pressure[place] = full_avg10

    def kept(self) -> list[tuple[float, int, float]]:
        """The samples, oldest first."""
        places = [number % SAMPLE_COUNT for number in range(max(0, self._count - SAMPLE_COUNT), self._count)]
        return [(self._when[place], self._available[place], self._pressure[place]) for place in places]


def describe_kill(samples: list[tuple[float, int, float]], floor_bytes: int) -> str:
    """One line: the memory left, the floor, and the last samples."""
    killed_at, available, pressure = samples[-1]
    floor = f"the floor of {floor_bytes // MIB:,} MiB"
    description = f"{available // MIB:,} MiB available"
    if available >= floor_bytes:
        description += f" of twice {floor}, and all work stood still for memory"
    else:
        description += f", below {floor}"
    older_samples = ([sample for sample in samples if killed_at - sample[0] >= age] for age in AGES)
    # The youngest sample that has each age, each sample once.
    quoted = dict.fromkeys(older[-1] for older in older_samples if older)
    history = ", ".join(f"{earlier // MIB:,} MiB {killed_at - when:.1f} s before" for when, earlier, _ in quoted)
    return (
        f"memory ran out: {description}; the engine was killed ({history}{'; ' if history else ''}"
        f"it fell by {_loss_rate(samples) / MIB:,.0f} MiB/s, memory pressure {pressure:.0f} %)"
    )


def _loss_rate(samples: list[tuple[float, int, float]]) -> float:
    """Bytes a second that went over the last SAMPLE_SECONDS or a little more; 0 where memory grew."""
    killed_at, available_bytes, _ = samples[-1]
    earlier_at, earlier_bytes, _ = next(
        (sample for sample in reversed(samples) if killed_at - sample[0] >= SAMPLE_SECONDS), samples[0]
    )
    return max(0.0, (earlier_bytes - available_bytes) / (killed_at - earlier_at)) if killed_at > earlier_at else 0.0
