"""A long load: a leak is found in the noise, and so is a failure."""

import asyncio
import random
from collections.abc import Callable, Sequence

import pytest
from msgspec.structs import replace
from tests.unit.stream_server import streaming
from tests.unit.verdicts import present

from sparkd.base.vllm.api import Endpoint
from sparkd.tools.measure.bench import Wanted
from sparkd.tools.measure.soak import Sample, Soak
from sparkd.tools.measure.soak_verdict import NOT_STEADY, STEADY, UNKNOWN, find_drift, judge

MIB, GIB = 1 << 20, 1 << 30
WANTED = Wanted((1, 2), (), 10, 3, 1, staggered=False, seed=1)


def samples(
    seconds: int,
    leak_per_minute: float = 0,
    *,
    noise: int = 20 * MIB,
    step_at: int | None = None,
    failed: int = 0,
    swap: int = 0,
) -> list[Sample]:
    """Samples of two nodes, of which the second leaks: every five seconds, rounded as a report is."""
    drawn = random.Random(1)

    def free(at: int) -> int:
        first_requests = min(at, 20) * 20 * MIB
        stepped = 300 * MIB if step_at is not None and at >= step_at else 0
        value = 20 * GIB - first_requests - int(at / 60 * leak_per_minute) - stepped + drawn.randint(-noise, noise)
        return value // (64 * MIB) * 64 * MIB

    return [
        Sample(float(at), {"spark1": 10 * GIB, "spark2": free(at)}, GIB, swap * at, 60, 2400, at, failed * at, at * 30)
        for at in range(0, seconds + 1, 5)
    ]


def silent(begin: int, end: int, measured: Sequence[Sample] = ()) -> list[Sample]:
    """Samples in which the second node is silent from `begin` to `end`."""
    known = {"spark1": GIB, "spark2": None}
    return [
        replace(sample, available_bytes=known) if begin <= sample.seconds < end else sample
        for sample in measured or samples(300)
    ]


@pytest.mark.parametrize(
    ("measured", "outcome", "line"),
    [
        (samples(300), STEADY, "spark2: no drift"),
        (samples(300, 50e6), NOT_STEADY, "spark2: available memory shrinks by 2."),
        (samples(300, 50e6, noise=40 * MIB), NOT_STEADY, "spark2: available memory shrinks by "),
        (samples(300, noise=200 * MIB), STEADY, "spark2: no drift"),
        (samples(300, -100e6), STEADY, "spark2: no drift"),
        (samples(8 * 3600, 1e6), NOT_STEADY, "spark2: available memory shrinks by 57 MiB an hour"),
        (samples(3600, step_at=1800), STEADY, "spark2: no drift"),
        (samples(20, 50e6), UNKNOWN, "spark2: too few samples"),
        (silent(0, 301), UNKNOWN, "spark2: too few samples"),
        (silent(120, 301), UNKNOWN, "spark2: too few samples"),
        (silent(100, 200), STEADY, "spark2: no drift"),
        (silent(100, 200, samples(600, 50e6)), NOT_STEADY, "spark2: available memory shrinks by "),
        (samples(300, swap=MIB), NOT_STEADY, "swap in use has grown by 300 MiB"),
        (samples(300, failed=1), NOT_STEADY, "300 failed"),
        ([], UNKNOWN, "nothing was measured"),
    ],
)  # fmt: skip
def test_shrinking_memory_growing_swap_or_a_failure_is_not_steady_and_few_samples_prove_nothing(
    measured: list[Sample], outcome: str, line: str
) -> None:
    verdict = judge(measured, "")
    assert verdict.outcome == outcome
    assert any(line in judged for judged in verdict.lines), verdict


def test_the_slope_is_the_leak_within_a_quarter() -> None:
    drift = present(find_drift("spark2", samples(300, 50e6)))
    assert drift.bytes_per_hour == pytest.approx(-3e9, rel=0.25)


def started(port: int, alive: Callable[[], bool] = lambda: True) -> Soak:
    def look() -> Sample:
        return Sample(0.0, {"a": GIB}, 0, 0, None, None)

    return Soak(Endpoint("127.0.0.1", port, "tiny"), WANTED, look, lambda _: None, alive)


def test_requests_are_counted() -> None:
    async def run(port: int) -> Soak:
        soak = started(port)
        await soak.run(1.0)
        return soak

    with streaming(0.02, 0.01) as port:
        soak = asyncio.run(run(port))
    last = soak.samples[-1]
    assert last.answered > 5
    assert last.tokens == last.answered * 3
    assert last.failed == 0
    assert soak.first_failure == ""
    assert 0.9 < last.seconds < 3


def test_a_server_that_goes_away_is_a_failure() -> None:
    async def run() -> Soak:
        with streaming(0.02, 0.01) as port:
            soak = started(port)
            work = asyncio.create_task(soak.run(2.0))
            await asyncio.sleep(0.7)
        await work
        return soak

    soak = asyncio.run(run())
    assert soak.samples[-1].failed
    assert soak.first_failure.startswith("after ")
    assert judge(soak.samples, soak.first_failure).outcome == NOT_STEADY


def test_failures_since_the_last_sample_count_when_it_is_interrupted() -> None:
    async def run() -> Soak:
        with streaming(0.02, 0.01) as port:
            soak = started(port)
            work = asyncio.create_task(soak.run(60))
            await asyncio.sleep(0.7)
        while not soak.first_failure:
            await asyncio.sleep(0.1)
        work.cancel()
        await asyncio.wait([work])
        return soak

    assert asyncio.run(run()).samples[-1].failed


def test_the_end_of_the_engine_is_the_end_of_the_soak() -> None:
    alive = [True]

    async def run(port: int) -> Soak:
        soak = started(port, lambda: alive[0])
        work = asyncio.create_task(soak.run(600))
        await asyncio.sleep(0.5)
        alive[0] = False  # the next engine answers on the same port
        async with asyncio.timeout(20):
            await work
        return soak

    with streaming(0.02, 0.01) as port:
        soak = asyncio.run(run(port))
    assert soak.samples[-1].answered
    assert soak.first_failure.endswith("the engine has ended")
    assert judge(soak.samples, soak.first_failure).outcome == NOT_STEADY
