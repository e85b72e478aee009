"""What a serving engine does, from two readings of its counters. Pure, with the readings that it keeps."""

from __future__ import annotations

import math
from collections import deque
from typing import NamedTuple

from sparkd.base.status.figures import ActivityReport
from sparkd.base.vllm.api import Counters

RATE_SECONDS = 4.0
"""Tokens a second are measured over at least this long: a troubled engine is probed more often."""
WINDOW_SECONDS = 600.0
"""Of the shares: of the prefix cache, and of the tokens that a drafter proposed."""
MOST_TOKENS = 1e9
"""A second. A larger figure is no engine's, and would make the report unreadable for other nodes."""
MOST_REQUESTS = 1e6


class Reading(NamedTuple):
    at: float
    counters: Counters


class ActivityMeter:
    """For one engine. Times are monotonic."""

    def __init__(self) -> None:
        self._readings: deque[Reading] = deque()
        self._rates = 0.0, 0.0

    def advance(self, at: float, counters: Counters | None) -> ActivityReport | None:
        """The figures with one more reading; None without one, and for counters that no engine has."""
        if counters is None or not all(0 <= value < math.inf for value in counters.values):
            return None
        readings = self._readings
        if readings and readings[-1].counters.generation_tokens > counters.generation_tokens:
            readings.clear()  # another engine
        if not readings or at - readings[-1].at >= RATE_SECONDS:
            if readings:
                before, seconds = readings[-1].counters, at - readings[-1].at
                self._rates = (
                    _rate(counters.prompt_tokens - before.prompt_tokens, seconds),
                    _rate(counters.generation_tokens - before.generation_tokens, seconds),
                )
            readings.append(Reading(at, counters))
        while at - readings[0].at > WINDOW_SECONDS:
            readings.popleft()
        oldest = readings[0].counters
        return ActivityReport(
            running=int(min(counters.running, MOST_REQUESTS)),
            waiting=int(min(counters.waiting, MOST_REQUESTS)),
            input_tokens_per_second=self._rates[0],
            output_tokens_per_second=self._rates[1],
            kv_cache_use=round(min(counters.kv_usage, 1.0), 4),  # one request of a large cache
            prefix_hit_rate=_share(
                counters.prefix_hits - oldest.prefix_hits, counters.prefix_queries - oldest.prefix_queries
            ),
            draft_acceptance=_share(counters.accepted - oldest.accepted, counters.drafted - oldest.drafted),
        )


def _rate(tokens: float, seconds: float) -> float:
    return round(min(max(0.0, tokens / seconds), MOST_TOKENS), 1)


def _share(part: float, whole: float) -> float | None:
    return round(min(max(0.0, part / whole), 1.0), 3) if whole > 0 else None
