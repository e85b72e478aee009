"""Requests for minutes or hours, and the drift of the nodes' memory meanwhile."""

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from itertools import combinations, cycle
from statistics import median
from typing import NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from sparkd.base.host import Host
from sparkd.base.host.meminfo import read_swaps
from sparkd.base.lib.http_client import HttpError
from sparkd.base.lib.text import size
from sparkd.base.status.model import read_living_report
from sparkd.base.vllm.api import Endpoint
from sparkd.base.vllm.streaming import StreamError
from sparkd.tools.measure.bench import REQUEST_SECONDS, Prompts, Wanted

SAMPLE_SECONDS, STEP_SECONDS = 5.0, 20.0
"""Time between two samples; time for one number of requests, before the next one's turn."""
WARM_SHARE, WARM_SECONDS = 0.2, 300.0
"""The beginning that is left out: the shorter of the two. An engine's first requests take memory that it keeps."""
NOISE_BYTES = 128 << 20
"""Smaller changes are noise: a node's report omits up to half of it."""
STEADY, NOT_STEADY, UNKNOWN = "steady", "not steady", "unknown"


class Sample(Struct, frozen=True):
    """Memory and GPUs at a time, with totals of requests up to then. `read_sample` leaves time and totals at 0."""

    seconds: float
    """Since the beginning."""
    available_bytes: Mapping[str, int | None]
    """Bytes by node; None for a node that does not answer."""
    cached_bytes: int
    """Page cache of this node."""
    swap_used_bytes: int
    """On this node."""
    gpu_celsius: int | None
    """The hottest GPU of all nodes."""
    gpu_mhz: int | None
    """The slowest GPU of all nodes."""
    answered: int = 0
    failed: int = 0
    tokens: int = 0


def read_sample(host: Host) -> Sample | None:
    """This node now, and the others as they last reported; None where this node can't be read."""
    try:
        memory, swaps = host.meminfo(), read_swaps(host.files)
    except (OSError, ValueError):
        return None
    report = read_living_report(host.files)
    peers = [(peer.report.node, peer.living) for peer in report.peers if peer.report] if report else []
    gpus = [node.gpu for node in (report, *(living for _, living in peers)) if node and node.gpu]
    return Sample(
        seconds=0.0,
        available_bytes={
            report.node if report else host.name(): memory.available_bytes,
            **{name: node.memory.available_bytes if node and node.memory else None for name, node in peers},
        },
        cached_bytes=memory.cached_bytes,
        swap_used_bytes=sum(swap.used_bytes for swap in swaps),
        gpu_celsius=max((gpu.temperature_celsius for gpu in gpus if gpu.temperature_celsius is not None), default=None),
        gpu_mhz=min((gpu.clock_mhz for gpu in gpus if gpu.clock_mhz is not None), default=None),
    )


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


class Point(NamedTuple):
    """Available memory of a node at a time."""

    seconds: float
    bytes: int


class Verdict(Struct, frozen=True):
    outcome: str
    """STEADY, NOT_STEADY or UNKNOWN."""
    lines: tuple[str, ...]


class Soak:
    """A series of requests. It adds to `samples` while it runs, so that an interrupt loses none."""

    def __init__(
        self,
        endpoint: Endpoint,
        wanted: Wanted,
        read: Callable[[], Sample | None],
        show: Callable[[Sample], object],
        is_alive: Callable[[], bool],
    ) -> None:
        """`read` takes a sample, `show` gets each one that is kept.

        `is_alive`: whether the engine that it began with runs. Another one would be another measurement.
        """
        self.samples: list[Sample] = []
        self.first_failure = ""
        self._endpoint, self._wanted, self._read, self._show = endpoint, wanted, read, show
        self._is_alive = is_alive
        self._prompts = Prompts(wanted.seed)
        self._answered = self._failed = self._tokens = 0
        self._began = 0.0

    async def run(self, seconds: float) -> None:
        """Send requests for so long, or until the engine ends: for STEP_SECONDS each of the numbers at once in turn.

        Raises HttpError, StreamError where not even the first request is answered.
        """
        await self._prompts.calibrate(self._endpoint)
        self._began = time.monotonic()
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds), asyncio.TaskGroup() as group:
                    group.create_task(self._take_samples())
                    for at_once in cycle(self._wanted.concurrency):
                        if not self._is_alive():
                            self._note_failure("the engine has ended")
                            break
                        until = time.monotonic() + STEP_SECONDS
                        async with asyncio.TaskGroup() as step:
                            for _ in range(at_once):
                                step.create_task(self._send_until(until))
        finally:
            self._add_sample()  # also after an interrupt: the last sample has the totals

    async def _take_samples(self) -> None:
        while self._is_alive():
            self._add_sample()
            await asyncio.sleep(SAMPLE_SECONDS)

    def _add_sample(self) -> None:
        if sample := self._read():
            totals = {"answered": self._answered, "failed": self._failed, "tokens": self._tokens}
            sample = replace(sample, seconds=time.monotonic() - self._began, **totals)
            self.samples.append(sample)
            self._show(sample)

    async def _send_until(self, until: float) -> None:
        while time.monotonic() < until and self._is_alive():
            prompt = self._prompts.make(self._wanted.prompt_tokens)
            try:
                answer = await self._endpoint.stream(prompt, self._wanted.answer_tokens, REQUEST_SECONDS)
            except (HttpError, StreamError) as error:
                self._failed += 1
                self._note_failure(str(error))
                await asyncio.sleep(1)
            else:
                self._answered += 1
                self._tokens += answer.tokens

    def _note_failure(self, reason: str) -> None:
        elapsed_seconds = time.monotonic() - self._began
        self.first_failure = self.first_failure or f"after {elapsed_seconds:.0f} s: {reason}"


def judge(samples: Sequence[Sample], first_failure: str) -> Verdict:
    """The verdict, with a line for each figure. The last sample has the totals. Pure."""
    if not samples:
        return Verdict(UNKNOWN, ("nothing was measured",))
    last_sample = samples[-1]
    nodes = sorted({name for sample in samples for name in sample.available_bytes})
    drifts = {node: find_drift(node, samples) for node in nodes}
    lines = [f"{node}: {_describe(drift)}" for node, drift in drifts.items()]
    swapped_bytes = last_sample.swap_used_bytes - samples[0].swap_used_bytes
    if swapped_bytes > NOISE_BYTES:
        lines.append(f"swap in use has grown by {size(swapped_bytes)}")
    rate = last_sample.tokens / last_sample.seconds if last_sample.seconds else 0.0
    lines.append(f"{last_sample.answered} requests answered, {rate:.1f} tokens/s, {last_sample.failed} failed")
    if first_failure:
        lines.append(f"first failure {first_failure}")
    shrinks = any(drift and drift.shrinks for drift in drifts.values())
    if last_sample.failed or first_failure or shrinks or swapped_bytes > NOISE_BYTES:
        return Verdict(NOT_STEADY, tuple(lines))
    return Verdict(STEADY if last_sample.answered and all(drifts.values()) else UNKNOWN, tuple(lines))


def _describe(drift: Drift | None) -> str:
    if drift is None:
        return "too few samples for a drift of memory"
    if not drift.shrinks:
        return f"no drift of available memory beyond its noise ({size(drift.left_bytes)} left)"
    hours = drift.left_bytes / -drift.bytes_per_hour
    loss = f"available memory shrinks by {size(round(-drift.bytes_per_hour))} an hour"
    return f"{loss}; at this rate the last {size(drift.left_bytes)} are gone in {hours:.1f} h"


def find_drift(node: str, samples: Sequence[Sample]) -> Drift | None:
    """The drift by the slope of Theil and Sen, which single samples move little.

    None with fewer than 6 samples after the beginning, or where most samples do not have the node's memory.
    """
    warm_seconds = min(WARM_SECONDS, samples[-1].seconds * WARM_SHARE)
    readings = [
        Point(sample.seconds, size_bytes)
        for sample in samples
        if (size_bytes := sample.available_bytes.get(node)) is not None
    ]
    points = [point for point in readings if point.seconds >= warm_seconds]
    points = points[:: max(1, -(-len(points) // 240))]  # at most 240, since each pair of them has a slope
    pairs = ((early, late) for early, late in combinations(points, 2) if late.seconds > early.seconds)
    slopes = [(late.bytes - early.bytes) / (late.seconds - early.seconds) for early, late in pairs]
    if len(points) < 6 or len(readings) * 2 < len(samples) or not slopes:
        return None
    slope = median(slopes)
    intercept = median(point.bytes - slope * point.seconds for point in points)
    noise = median(abs(point.bytes - slope * point.seconds - intercept) for point in points)
    change = slope * (points[-1].seconds - points[0].seconds)
    third = len(points) // 3
    # A drift shows in each third. A single step, such as another program that begins, does not.
    thirds = (points[:third], points[third : 2 * third], points[2 * third :])
    first, second, last = (median(point.bytes for point in part) for part in thirds)
    is_lasting = all(step * change > 0 and abs(step) > abs(change) / 6 for step in (second - first, last - second))
    return Drift(slope * 3600.0, is_lasting and abs(change) > max(NOISE_BYTES, 4 * noise), readings[-1].bytes)
