"""What the guard has seen before it killed: samples, and the sentence that tells of them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress

from msgspec import Struct

MIB = 1 << 20
AGES = (5.0, 3.0, 2.0, 1.0, 0.5, 0.2)
"""Seconds before the end that are told of."""


class Sample(Struct, frozen=True):
    at: float
    available_bytes: int
    full_avg10: float


def parse(lines: Iterable[str]) -> tuple[Sample, ...]:
    """Oldest first. A line that is none is passed over: the kill counts, and it has happened."""
    found = []
    for line in lines:
        with suppress(ValueError):
            at, available, pressure = line.split()
            found.append(Sample(float(at), int(available), float(pressure)))
    return tuple(found)


def sentence(samples: Sequence[Sample], floor_bytes: int) -> str:
    """In one line: what was left, against which floor, and how it came to that."""
    floor = f"the floor of {floor_bytes // MIB:,} MiB"
    if not samples:
        return f"memory ran out: less than {floor} was available; the engine was killed"
    last = samples[-1]
    found = f"{last.available_bytes // MIB:,} MiB available"
    if last.available_bytes >= floor_bytes:
        found += f" of twice {floor}, and all work stood still for memory"
    else:
        found += f", below {floor}"
    history = ", ".join(f"{one.available_bytes // MIB:,} MiB {last.at - one.at:.1f} s before" for one in _told(samples))
    return (
        f"memory ran out: {found}; the engine was killed ("
        + (f"{history}; " if history else "")
        + f"it fell by {_rate(samples) / MIB:,.0f} MiB/s, memory pressure {last.full_avg10:.0f} %)"
    )


def _told(samples: Sequence[Sample]) -> list[Sample]:
    """The youngest sample of each age."""
    last = samples[-1]
    picked: list[Sample] = []
    for age in AGES:
        old_enough = [one for one in samples if last.at - one.at >= age]
        if old_enough and old_enough[-1] not in picked:
            picked.append(old_enough[-1])
    return picked


def _rate(samples: Sequence[Sample]) -> float:
    """Bytes a second that were lost over the last tenth of a second or more; 0 where it did not fall."""
    last = samples[-1]
    earlier = next((one for one in reversed(samples) if last.at - one.at >= 0.1), samples[0])
    seconds = last.at - earlier.at
    return max(0.0, (earlier.available_bytes - last.available_bytes) / seconds) if seconds > 0 else 0.0
