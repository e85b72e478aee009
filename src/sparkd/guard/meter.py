"""MemAvailable and memory pressure, for a reader that must not wait for memory itself.

The files stay open (the kernel keeps their buffers), and are read into one buffer of our own.
"""

from __future__ import annotations

import os

_AVAILABLE = b"MemAvailable:"
_FULL = b"full avg10="
_READ = os.O_RDONLY | os.O_CLOEXEC


class Meter:
    """Raises OSError and ValueError where available memory can't be told. Pressure is 0 where there is none to read."""

    def __init__(self, proc: str) -> None:
        self._meminfo = os.open(f"{proc}/meminfo", _READ)
        self._pressure = _opened(f"{proc}/pressure/memory")
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
        if self._pressure is None:
            return 0.0
        try:
            size = os.preadv(self._pressure, self._into, 0)
            start = self._buffer.find(_FULL, 0, size)
            return float(self._buffer[start + len(_FULL) : self._buffer.find(b" ", start + len(_FULL), size)])
        except (OSError, ValueError):
            return 0.0


def _opened(path: str) -> int | None:
    """None for a kernel without it, or told not to keep it."""
    try:
        return os.open(path, _READ)
    except OSError:
        return None
