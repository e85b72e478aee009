"""What one source of requests may take, so that none crowds out the others."""

from __future__ import annotations

from collections import Counter

from msgspec import Struct

SOURCES_KEPT = 1024
"""Buckets kept. Past it the one unused for longest goes, and that source begins with a full one: memory stays flat."""


class _Bucket(Struct, frozen=True):
    tokens: float
    at: float


class Quota:
    """For one thread. `now` is monotonic seconds."""

    def __init__(self, connections: int, requests_per_second: float | None, burst: int) -> None:
        self._connections = connections
        self._rate = requests_per_second
        self._burst = burst
        self._open: Counter[str] = Counter()
        self._buckets: dict[str, _Bucket] = {}

    def enter(self, source: str) -> bool:
        """Take one connection; whether there was one left."""
        if self._open[source] >= self._connections:
            return False
        self._open[source] += 1
        return True

    def leave(self, source: str) -> None:
        """Give a connection back."""
        self._open[source] -= 1
        if not self._open[source]:
            del self._open[source]

    def spend(self, source: str, now: float) -> bool:
        """Take one request out of the source's bucket; whether there was one in it, or they are not counted."""
        if self._rate is None:
            return True
        last = self._buckets.pop(source, _Bucket(self._burst, now))
        tokens = min(self._burst, last.tokens + (now - last.at) * self._rate)
        enough = tokens >= 1
        self._buckets[source] = _Bucket(tokens - 1 if enough else tokens, now)
        if len(self._buckets) > SOURCES_KEPT:
            del self._buckets[next(iter(self._buckets))]
        return enough
