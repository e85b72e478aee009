"""When a GPU counts as slow, how that is reported, and when it counts as computing."""

from collections.abc import Callable
from concurrent.futures import Future
from itertools import count

import pytest
from tests.unit.cluster_nodes import EventLines
from tests.unit.engine.outcomes import at_once
from tests.unit.nodes import report

from sparkd.agent.engine.gpu_throttle import (
    CLOCKS_SECONDS,
    HURRIED_SECONDS,
    THROTTLE_HINT,
    Clocks,
    GpuThrottleMonitor,
    ThrottleState,
    computes,
    decide_throttle,
    report_gpu,
)
from sparkd.base.host.gpu import GpuClocks
from sparkd.base.status.model import FindingReport, Phase
from sparkd.base.status.publisher import Reporter


def gpu(mhz: int | None, watts: float | None, percent: int | None, name: str = "NVIDIA GB10", *held: str) -> Clocks:
    return (GpuClocks(name, mhz, watts, percent, held),)


SLOW, FAST, IDLE = gpu(611, 22.4, 96), gpu(2411, 61, 96), gpu(208, 4, 0)
WARNING = "the GPU is slow: 611 MHz and 22 W under load"


@pytest.mark.parametrize(
    ("looks", "warning"),
    [
        ([SLOW], ""),
        ([SLOW, SLOW], WARNING),
        ([SLOW, FAST, SLOW], ""),
        ([SLOW, IDLE, SLOW], ""),
        ([SLOW, (), SLOW], ""),
        ([SLOW, SLOW, IDLE], WARNING),
        ([SLOW, SLOW, ()], WARNING),
        ([SLOW, SLOW, FAST], ""),
        ([FAST] * 3, ""),
        ([IDLE] * 3, ""),
        ([gpu(850, 30, 90)] * 2, "the GPU is slow: 850 MHz and 30 W under load"),
        ([gpu(851, 30, 90)] * 2, ""),
        ([gpu(850, 30.1, 90)] * 2, "the GPU is slow: 850 MHz and 30 W under load"),
        ([gpu(850, 30, 89)] * 2, ""),
        ([gpu(2400, 20, 96)] * 2, ""),
        ([gpu(None, 22, 96)] * 2, ""),
        ([gpu(611, None, 96)] * 2, "the GPU is slow: 611 MHz under load"),
        ([gpu(611, 22, None)] * 2, ""),
        ([gpu(611, 22, 96, "NVIDIA T4")] * 2, ""),
        ([gpu(611, 22, 96, "NVIDIA GB10", "its power cap")] * 2, f"{WARNING}, held down by its power cap"),
        # A latched clock, at half speed under load and at little power; then clocks that have a reason.
        ([gpu(702, 33.8, 96), gpu(702, 36.1, 95), gpu(705, 34.9, 96)], "the GPU is slow: 702 MHz and 36 W under load"),
        ([gpu(799, 19.5, 96)] * 3, "the GPU is slow: 799 MHz and 20 W under load"),
        ([gpu(2398, 45, 96)] * 3, ""),  # decoding
        ([gpu(1480, 31, 94)] * 3, ""),  # decoding, which the memory limits, at a lower clock
        ([gpu(2184, 38, 96)] * 3, ""),  # limited by its owner
        ([gpu(2411, 22, 96)] * 3, ""),  # waiting for another rank
        ([gpu(208, 4.2, 96)] * 3, ""),  # idle since a moment, still called busy
        ([gpu(702, 36, 40), gpu(702, 36, 96), gpu(2398, 47, 95)], ""),  # while its clock rises
    ],
)  # fmt: skip
def test_a_gpu_is_slow_where_two_looks_under_load_find_it_so(looks: list[Clocks], warning: str) -> None:
    state = ThrottleState()
    for number, clocks in enumerate(looks):
        state = decide_throttle(state, clocks, 1000 + 30 * number)
    assert state.warning == warning


def test_a_gpu_is_slow_after_half_a_minute_under_load() -> None:
    first = decide_throttle(ThrottleState(), SLOW, 0)
    assert decide_throttle(first, SLOW, 29.9).warning == ""
    assert decide_throttle(first, SLOW, 30).warning == WARNING


def clock() -> Callable[[], float]:
    """Each look is half a minute after the one before."""
    return count(0.0, CLOCKS_SECONDS).__next__


def test_a_slow_gpu_is_logged_once_and_again_when_it_recovers() -> None:
    events, answers = EventLines(), [SLOW, SLOW, SLOW, IDLE, FAST, FAST]
    monitor = GpuThrottleMonitor(at_once, events, lambda: answers.pop(0), clock())
    reports = [monitor.check() for _ in range(6)]
    assert reports == ["", "", WARNING, WARNING, WARNING, ""]
    assert [line.split()[0] for line in events.lines] == ["gpu.throttle.detected", "gpu.throttle.ended"]


def test_a_gpu_is_read_twice_a_minute_however_often_it_is_checked() -> None:
    calls: list[int] = []

    def read() -> Clocks:
        calls.append(1)
        return FAST

    monitor = GpuThrottleMonitor(at_once, EventLines(), read, lambda: 1000.0)
    for _ in range(5):
        monitor.check()
    assert len(calls) == 1


def test_a_hanging_driver_is_called_once_and_blocks_nothing() -> None:
    calls: list[Callable[[], Clocks]] = []

    def never(work: Callable[[], Clocks]) -> Future[Clocks]:
        calls.append(work)
        return Future()

    monitor = GpuThrottleMonitor(never, EventLines(), lambda: FAST, clock())
    assert [monitor.check() for _ in range(5)] == [""] * 5
    assert len(calls) == 1


def test_a_slow_gpu_is_in_the_message_and_among_the_findings_until_it_recovers() -> None:
    preflight = FindingReport("page-cache", "warn", "4 GiB", "")
    reporter = Reporter(report(0, phase=Phase.SERVING, findings=(preflight,)), ())
    answers = [SLOW, SLOW, FAST, FAST]
    monitor = GpuThrottleMonitor(at_once, EventLines(), lambda: answers.pop(0), clock())
    messages = [report_gpu(reporter, "m on port 8000", monitor) for _ in range(3)]
    assert messages == ["m on port 8000", "m on port 8000", f"m on port 8000; {WARNING}: {THROTTLE_HINT}"]
    assert reporter.report.findings[1:] == (FindingReport("gpu-clocks", "warn", WARNING, THROTTLE_HINT),)
    assert report_gpu(reporter, "m on port 8000", monitor) == "m on port 8000"
    assert reporter.report.findings == (preflight,)


@pytest.mark.parametrize(
    ("clocks", "expected"),
    [
        pytest.param(FAST, True, id="at work"),
        pytest.param(gpu(2411, 27, 96), False, id="it waits for another rank: as busy, at little power"),
        pytest.param(SLOW, False, id="throttled"),
        pytest.param(IDLE, False, id="idle"),
        pytest.param(gpu(2411, None, 96), False, id="power unknown"),
        pytest.param((), False, id="no answer"),
    ],
)
def test_a_gpu_computes_where_it_is_busy_and_draws_power(clocks: Clocks, expected: bool) -> None:
    assert computes(clocks) is expected


def test_a_gpu_in_question_is_read_often_and_an_old_reading_proves_nothing() -> None:
    now = 1000.0
    reads: list[float] = []

    def read() -> Clocks:
        reads.append(now)
        return FAST

    monitor = GpuThrottleMonitor(at_once, EventLines(), read, lambda: now)
    monitor.check()
    now += CLOCKS_SECONDS - 1
    monitor.check()
    assert not monitor.computes(), "the last reading is of half a minute ago"
    for _ in range(4):
        monitor.check()
        now += HURRIED_SECONDS / 2
        computing = monitor.computes()
    assert computing
    assert len(reads) == 3
