"""When an engine is given up, when a GPU counts as slow, and how that is reported."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from itertools import count

import pytest
from tests.tree import Tree
from tests.unit.cluster_nodes import EventLines, agent_under_test, alone
from tests.unit.engine_server import Reply, engine
from tests.unit.nodes import network, until

from sparkd.agent.deps import Deps
from sparkd.agent.serving import with_gpu
from sparkd.config.settings import Supervise
from sparkd.engine.health import (
    CLOCKS_SECONDS,
    THROTTLE_HINT,
    Clocks,
    Continue,
    Failure,
    GpuThrottleMonitor,
    HealthMonitor,
    HealthState,
    Observation,
    ThrottleState,
    decide,
    decide_throttle,
)
from sparkd.engine.log_lines import LoadProgress
from sparkd.host.gpu import GpuClocks
from sparkd.lib.errors import EngineEndedError, StalledError
from sparkd.lib.main_loop import MainLoop
from sparkd.lib.systemd import Notifier
from sparkd.status.model import FindingReport, Phase
from sparkd.vllm.api import Completion, Counters, Endpoint

LIMITS = Supervise(stall_seconds=360, canary_seconds=300)
START = HealthState(answered_at=0, moved_at=0, proven_at=0)
TOKEN, FAILED = Completion(token=True), Completion(token=False, said="HTTP 500")


def look(*seen: Observation, limits: Supervise = LIMITS) -> Continue | Failure:
    decision: Continue | Failure = Continue(START)
    for observation in seen:
        assert isinstance(decision, Continue), f"ended before {observation}"
        decision = decide(decision.state, observation, limits)
    return decision


def at(
    seconds: float,
    tokens: float | None = 5,
    *,
    running: float = 0,
    waiting: float = 0,
    health: int | None = 200,
    canary: Completion | None = None,
) -> Observation:
    """`tokens` None: the engine has no statistics."""
    counters = None if tokens is None else Counters(running, waiting, tokens, tokens, tokens)
    return Observation(seconds, health, counters, canary)


PREFILL = Counters(1, 0, prompt_tokens=5, generation_tokens=5, iterations=6)


@pytest.mark.parametrize(
    ("seen", "kind"),
    [
        pytest.param([at(1, health=503)], EngineEndedError, id="503 is death at once"),
        pytest.param([at(10, running=1), at(369, running=1)], Continue, id="requests without a token, in time"),
        pytest.param([at(10, running=1), at(370, running=1)], StalledError, id="requests without a token, too long"),
        pytest.param([at(10, waiting=3), at(400, waiting=3)], StalledError, id="requests that never run"),
        pytest.param(
            [at(10, running=1), Observation(300, 200, PREFILL), Observation(600, 200, PREFILL)],
            Continue,
            id="any counter that moves is progress",
        ),
        pytest.param([at(359, None, health=None)], Continue, id="no answer, in time"),
        pytest.param([at(360, None, health=None)], StalledError, id="no answer, too long"),
        pytest.param([at(300), at(310, canary=FAILED), at(661)], StalledError, id="idle, canaries fail for too long"),
        pytest.param(
            [at(300, None), at(420, None, canary=FAILED), at(661, None)],
            StalledError,
            id="no counters, canaries fail",
        ),
    ],
)
def test_an_engine_continues_is_dead_or_stalled(seen: list[Observation], kind: type[Continue | Failure]) -> None:
    assert isinstance(look(*seen), kind)


@pytest.mark.parametrize(
    ("seen", "degraded", "wants_canary"),
    [
        pytest.param([at(seconds) for seconds in range(0, 2000, 5)], "", True, id="idle"),
        pytest.param([at(seconds, None) for seconds in range(0, 2000, 5)], "", True, id="no statistics"),
        pytest.param([at(s, s, running=1) for s in range(0, 2000, 5)], "", False, id="tokens of others are proof"),
        pytest.param([at(0), at(310), at(315, 6, canary=TOKEN)], "", False, id="a canary that came back is proof"),
        pytest.param(
            [at(300), at(310, canary=FAILED)],
            "a canary completion failed: HTTP 500",
            True,
            id="one failure: request again",
        ),
        pytest.param([at(300), at(310, canary=FAILED), at(320, 9, running=1)], "", False, id="tokens clear a failure"),
        pytest.param([at(40, None, health=None)], "the API server has not answered for 40 s", False, id="silence"),
    ],
)
def test_problems_are_reported_and_a_canary_is_sent_where_nothing_else_proves_progress(
    seen: list[Observation], degraded: str, wants_canary: bool
) -> None:
    decision = look(*seen)
    assert isinstance(decision, Continue)
    assert (decision.degraded, decision.wants_canary) == (degraded, wants_canary)


def test_canaries_can_be_switched_off() -> None:
    decision = look(at(5000), limits=Supervise(stall_seconds=360, canary_seconds=0))
    assert isinstance(decision, Continue)
    assert not decision.wants_canary


@pytest.fixture
def agent(tree: Tree) -> Iterator[Deps]:
    with agent_under_test(tree, 0, alone()) as made:
        yield made.agent


def gpu(mhz: int | None, watts: float | None, percent: int | None, name: str = "NVIDIA GB10", *held: str) -> Clocks:
    return (GpuClocks(name, mhz, watts, percent, held),)


SLOW, FAST, IDLE = gpu(611, 22.4, 96), gpu(2411, 61, 96), gpu(208, 4, 0)
SAID = "the GPU is slow: 611 MHz and 22 W under load"


@pytest.mark.parametrize(
    ("looks", "warning"),
    [
        ([SLOW], ""),
        ([SLOW, SLOW], SAID),
        ([SLOW, FAST, SLOW], ""),
        ([SLOW, IDLE, SLOW], ""),
        ([SLOW, (), SLOW], ""),
        ([SLOW, SLOW, IDLE], SAID),
        ([SLOW, SLOW, ()], SAID),
        ([SLOW, SLOW, FAST], ""),
        ([FAST] * 3, ""),
        ([IDLE] * 3, ""),
        ([gpu(850, 30, 90)] * 2, "the GPU is slow: 850 MHz and 30 W under load"),
        ([gpu(851, 30, 90)] * 2, ""),
        ([gpu(850, 30.1, 90)] * 2, ""),
        ([gpu(850, 30, 89)] * 2, ""),
        ([gpu(2400, 20, 96)] * 2, ""),
        ([gpu(None, 22, 96)] * 2, ""),
        ([gpu(611, None, 96)] * 2, ""),
        ([gpu(611, 22, None)] * 2, ""),
        ([gpu(611, 22, 96, "NVIDIA T4")] * 2, ""),
        ([gpu(611, 22, 96, "NVIDIA GB10", "its power cap")] * 2, f"{SAID}, held down by its power cap"),
    ],
)  # fmt: skip
def test_a_gpu_is_slow_where_two_looks_under_load_find_it_so(looks: list[Clocks], warning: str) -> None:
    slow = ThrottleState()
    for number, seen in enumerate(looks):
        slow = decide_throttle(slow, seen, 1000 + 30 * number)
    assert slow.warning == warning


def test_a_gpu_is_slow_after_half_a_minute_under_load() -> None:
    slow = decide_throttle(ThrottleState(), SLOW, 0)
    assert decide_throttle(slow, SLOW, 29.9).warning == ""
    assert decide_throttle(slow, SLOW, 30).warning == SAID


def at_once(work: Callable[[], Clocks]) -> Future[Clocks]:
    future: Future[Clocks] = Future()
    future.set_result(work())
    return future


def clock() -> Callable[[], float]:
    """Each look is half a minute after the one before."""
    return count(0.0, CLOCKS_SECONDS).__next__


def test_a_slow_gpu_is_logged_once_and_again_when_it_recovers() -> None:
    events, answers = EventLines(), [SLOW, SLOW, SLOW, IDLE, FAST, FAST]
    watch = GpuThrottleMonitor(at_once, events, lambda: answers.pop(0), clock())
    said = [watch.check() for _ in range(6)]
    assert said == ["", "", SAID, SAID, SAID, ""]
    assert [line.split()[0] for line in events.lines] == ["gpu.throttle.detected", "gpu.throttle.ended"]


def test_a_gpu_is_read_twice_a_minute_however_often_it_is_checked() -> None:
    calls: list[int] = []

    def read() -> Clocks:
        calls.append(1)
        return FAST

    watch = GpuThrottleMonitor(at_once, EventLines(), read, lambda: 1000.0)
    for _ in range(5):
        watch.check()
    assert len(calls) == 1


def test_a_hanging_driver_is_called_once_and_blocks_nothing() -> None:
    calls: list[Callable[[], Clocks]] = []

    def never(work: Callable[[], Clocks]) -> Future[Clocks]:
        calls.append(work)
        return Future()

    watch = GpuThrottleMonitor(never, EventLines(), lambda: FAST, clock())
    assert [watch.check() for _ in range(5)] == [""] * 5
    assert len(calls) == 1


def test_a_slow_gpu_is_in_the_message_and_among_the_findings_and_changes_no_phase(agent: Deps) -> None:
    preflight = FindingReport("page-cache", "warn", "4 GiB", "")
    agent.reporter.update(phase=Phase.SERVING, findings=(preflight,))
    answers = [SLOW, SLOW, FAST]
    watch = GpuThrottleMonitor(at_once, EventLines(), lambda: answers.pop(0), clock())
    assert with_gpu(agent, "m on port 8000", watch) == "m on port 8000"
    assert with_gpu(agent, "m on port 8000", watch) == "m on port 8000"
    assert with_gpu(agent, "m on port 8000", watch) == f"m on port 8000; {SAID}: {THROTTLE_HINT}"
    slow = FindingReport("gpu-clocks", "warn", SAID, THROTTLE_HINT)
    assert list(agent.reporter.report.findings) == [preflight, slow]
    assert (
        with_gpu(agent, "m on port 8000", GpuThrottleMonitor(at_once, EventLines(), lambda: FAST, clock()))
        == "m on port 8000"
    )
    assert list(agent.reporter.report.findings) == [preflight]
    assert agent.reporter.report.phase is Phase.SERVING


def test_a_monitor_probes_often_after_an_error_in_the_log_and_spares_a_canary_that_fails() -> None:
    requests: list[str] = []
    problems: list[str] = []

    def reply(request: str, _: str) -> Reply:
        requests.append(request)
        canary = "POST /v1/completions"
        dead = canary in requests and requests[requests.index(canary) :].count("GET /health") > 4
        return {"GET /health": (503 if dead else 200, b""), "GET /metrics": (404, b"")}.get(request, (500, b"no"))

    progress = LoadProgress(failing_since=time.monotonic())
    ended: list[object] = []
    reading, writing = os.pipe()  # as the pidfd of a running process
    with engine(reply) as port, network() as loop:
        main, endpoint = MainLoop(Notifier(), {}, loop), Endpoint("127.0.0.1", port, "tiny")
        monitor = HealthMonitor(main, endpoint, lambda: progress, Supervise(canary_seconds=1), 5.0, problems.append)
        thread = threading.Thread(target=lambda: ended.append(monitor.run(reading)))
        thread.start()
        until(lambda: ended)
        thread.join()
    os.close(reading)
    os.close(writing)
    (error,) = ended
    assert isinstance(error, EngineEndedError)
    assert error.reason == "the engine is dead: /health answers 503"
    assert "a canary completion failed: HTTP 500 no" in problems
    assert requests.count("POST /v1/completions") == 1
