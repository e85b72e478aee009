"""Figures of a serving engine, computed from its counters."""

import math
from collections import deque
from typing import NamedTuple

from msgspec import Struct, field
from msgspec.structs import astuple

from sparkd.base.status.figures import ActivityReport
from sparkd.base.vllm.counters import Counters

RATE_SECONDS = 4.0
"""Tokens a second are measured over at least this long: a troubled engine is probed more often."""
WINDOW_SECONDS = 600.0
"""Span of the shares: of the prefix cache, and of the tokens that a drafter proposed."""
RECENT_SECONDS = 60.0
"""Span of the time to first token."""
MOST_TOKENS = 1e9
"""Limit of tokens a second. A larger figure is no engine's, and would make the report unreadable for other nodes."""
MOST_REQUESTS, MOST_SECONDS = 1e6, 1e6
"""The same for requests, and for the time to first token."""


class Reading(NamedTuple):
    at: float
    """Monotonic seconds."""
    counters: Counters


class ActivityMeter(Struct):
    """Measures one engine."""

    _readings: deque[Reading] = field(default_factory=deque)
    _rates: tuple[float, float] = (0.0, 0.0)
    """Prompt and generated tokens a second, between the last two readings that were kept."""

    def advance(self, at: float, counters: Counters | None) -> ActivityReport | None:
        """The figures after one more reading; None without counters, and for values that no engine has."""
        if counters is None or not all(0 <= value < math.inf for value in astuple(counters)):
            return None
        readings = self._readings
        if readings and readings[-1].counters.generation_tokens > counters.generation_tokens:
            readings.clear()  # an engine's count never falls: this is another one
        if not readings or at - readings[-1].at >= RATE_SECONDS:
            if readings:
                earlier, seconds = readings[-1].counters, at - readings[-1].at
                self._rates = (
                    _compute_rate(counters.prompt_tokens - earlier.prompt_tokens, seconds),
                    _compute_rate(counters.generation_tokens - earlier.generation_tokens, seconds),
                )
            readings.append(Reading(at, counters))
        while at - readings[0].at > WINDOW_SECONDS:
            readings.popleft()
        oldest = readings[0].counters
        minute_ago = next(reading.counters for reading in readings if at - reading.at <= RECENT_SECONDS)
        answers = counters.first_tokens - minute_ago.first_tokens
        waited_seconds = counters.first_token_seconds - minute_ago.first_token_seconds
        return ActivityReport(
            running=int(min(counters.running, MOST_REQUESTS)),
            waiting=int(min(counters.waiting, MOST_REQUESTS)),
            input_tokens_per_second=self._rates[0],
            output_tokens_per_second=self._rates[1],
            kv_cache_use=round(min(counters.kv_usage, 1.0), 4),  # so fine that one request shows in a large cache
            prefix_hit_rate=_compute_share(
                counters.prefix_hits - oldest.prefix_hits, counters.prefix_queries - oldest.prefix_queries
            ),
            draft_acceptance=_compute_share(counters.accepted - oldest.accepted, counters.drafted - oldest.drafted),
            first_token_seconds=round(min(max(0.0, waited_seconds / answers), MOST_SECONDS), 3)
            if answers > 0
            else None,
        )


def _compute_rate(tokens: float, seconds: float) -> float:
    return round(min(max(0.0, tokens / seconds), MOST_TOKENS), 1)


def _compute_share(part: float, whole: float) -> float | None:
    return round(min(max(0.0, part / whole), 1.0), 3) if whole > 0 else None
