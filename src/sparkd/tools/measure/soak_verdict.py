"""The verdict on a soak: whether a request failed, swap grew, or a node's memory shrank beyond its noise. Pure."""

from collections.abc import Sequence
from itertools import combinations
from statistics import median
from typing import NamedTuple

from msgspec import Struct

from sparkd.base.lib.text import counted, size
from sparkd.tools.measure.soak import Sample

WARM_SHARE, WARM_SECONDS = 0.2, 300.0
"""The beginning that is left out: the shorter of the two. An engine's first requests take memory that it keeps."""
NOISE_BYTES = 128 << 20
"""Smaller changes are noise: a node's report omits up to half of it."""
LEAST_POINTS, MOST_POINTS = 6, 240
"""Samples that a drift is computed from: two for each third; not more, since each pair of them has a slope."""
STEADY, NOT_STEADY, UNKNOWN = "steady", "not steady", "unknown"


class SoakVerdict(Struct, frozen=True):
    outcome: str
    """STEADY, NOT_STEADY or UNKNOWN."""
    lines: tuple[str, ...]


def judge(samples: Sequence[Sample], first_failure: str) -> SoakVerdict:
    """The verdict, with a line for each figure. The last sample has the totals."""
    if not samples:
        return SoakVerdict(UNKNOWN, ("nothing was measured",))
    last_sample = samples[-1]
    nodes = sorted({name for sample in samples for name in sample.available_bytes})
    drifts = {node: find_drift(node, samples) for node in nodes}
    lines = [f"{node}: {_describe(drift)}" for node, drift in drifts.items()]
    swapped_bytes = last_sample.swap_used_bytes - samples[0].swap_used_bytes
    if swapped_bytes > NOISE_BYTES:
        lines.append(f"swap in use has grown by {size(swapped_bytes)}")
    rate = last_sample.tokens / last_sample.seconds if last_sample.seconds else 0.0
    answered = counted(last_sample.answered, "request")
    lines.append(f"{answered} answered, {rate:.1f} tokens/s, {last_sample.failed} failed")
    if first_failure:
        lines.append(f"first failure {first_failure}")
    shrinks = any(drift and drift.shrinks for drift in drifts.values())
    if last_sample.failed or first_failure or shrinks or swapped_bytes > NOISE_BYTES:
        return SoakVerdict(NOT_STEADY, tuple(lines))
    return SoakVerdict(STEADY if last_sample.answered and all(drifts.values()) else UNKNOWN, tuple(lines))


class Drift(Struct, frozen=True):
    """The change of a node's available memory over time."""

    bytes_per_hour: float
    """Below zero where it shrinks. The median of the slopes between all pairs of samples."""
    significant: bool
    """Whether it lasts, and is greater than the noise."""
    left_bytes: int
    """Available memory in the last sample."""

    @property
    def shrinks(self) -> bool:
        return self.significant and self.bytes_per_hour < 0


def _describe(drift: Drift | None) -> str:
    if drift is None:
        return "too few samples for a drift of memory"
    if not drift.shrinks:
        return f"no drift of available memory beyond its noise ({size(drift.left_bytes)} left)"
    hours = drift.left_bytes / -drift.bytes_per_hour
    loss = f"available memory shrinks by {size(round(-drift.bytes_per_hour))} an hour"
    return f"{loss}; at this rate the last {size(drift.left_bytes)} are gone in {hours:.1f} h"


class Point(NamedTuple):
    """Available memory of a node at a time."""

    seconds: float
    bytes: int


def find_drift(node: str, samples: Sequence[Sample]) -> Drift | None:
    """The drift by the slope of Theil and Sen, which single samples move little.

    None with fewer than LEAST_POINTS samples after the beginning, or where most samples lack the node's memory.
    """
    readings = [
        Point(sample.seconds, available_bytes)
        for sample in samples
        if (available_bytes := sample.available_bytes.get(node)) is not None
    ]
    warm_seconds = min(WARM_SECONDS, samples[-1].seconds * WARM_SHARE)
    points = _thin([point for point in readings if point.seconds >= warm_seconds])
    pairs = ((early, late) for early, late in combinations(points, 2) if late.seconds > early.seconds)
    slopes = [(late.bytes - early.bytes) / (late.seconds - early.seconds) for early, late in pairs]
    if len(points) < LEAST_POINTS or len(readings) * 2 < len(samples) or not slopes:
        return None
    slope = median(slopes)
    change_bytes = slope * (points[-1].seconds - points[0].seconds)
    is_beyond_noise = abs(change_bytes) > max(NOISE_BYTES, 4 * _measure_noise(points, slope))
    return Drift(slope * 3600.0, is_beyond_noise and _lasts(change_bytes, points), readings[-1].bytes)


def _thin(points: Sequence[Point]) -> Sequence[Point]:
    """Every second point, or third and so on, so that at most MOST_POINTS are left."""
    return points[:: max(1, -(-len(points) // MOST_POINTS))]


def _measure_noise(points: Sequence[Point], slope: float) -> float:
    """The median distance of the points from their line, in bytes."""
    intercept = median(point.bytes - slope * point.seconds for point in points)
    return median(abs(point.bytes - slope * point.seconds - intercept) for point in points)


def _lasts(change_bytes: float, points: Sequence[Point]) -> bool:
    """Whether a change shows from each third of the time to the next: half of what an even drift makes, at least.

    A single step, such as another program that begins, shows in one of them only.
    """
    third = len(points) // 3
    thirds = (points[:third], points[third : 2 * third], points[2 * third :])
    first, second, last = (median(point.bytes for point in part) for part in thirds)
    least_bytes = abs(change_bytes) / 6
    return all(step * change_bytes > 0 and abs(step) > least_bytes for step in (second - first, last - second))
