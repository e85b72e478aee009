"""The last looks at memory, in memory that is there beforehand."""

from __future__ import annotations

from array import array

COUNT = 64
KEPT_SECONDS = 0.1
"""Between samples that are kept: all of them are 6 s or more."""


class Samples:
    """When, available bytes, pressure."""

    def __init__(self) -> None:
        self._when = array("d", bytes(8 * COUNT))
        self._available = array("q", bytes(8 * COUNT))
        self._pressure = array("d", bytes(8 * COUNT))
        self._count = 0

    def put(self, when: float, available_bytes: int, full_avg10: float) -> None:
        """The newest always stays; it takes the place of the one before where that is close to its own predecessor."""
        newest, before = (self._count - 1) % COUNT, (self._count - 2) % COUNT
        if self._count < 2 or self._when[newest] - self._when[before] >= KEPT_SECONDS:
            newest = self._count % COUNT
            self._count += 1
        self._when[newest] = when
        self._available[newest] = available_bytes
        self._pressure[newest] = full_avg10

    def lines(self) -> str:
        """Oldest first: `when available_bytes full_avg10`."""
        places = [number % COUNT for number in range(max(0, self._count - COUNT), self._count)]
        return "".join(f"{self._when[i]:.3f} {self._available[i]} {self._pressure[i]:.1f}\n" for i in places)
