"""When an engine is given up, degraded, or sent for a canary. The situations are in test_hangs.py."""

import threading
import time
from pathlib import Path

import pytest
from msgspec.structs import replace
from tests.unit.engine_server import Reply, engine, token
from tests.unit.nodes import until

from sparkd.agent.engine.health import DOUBT_SECONDS, Continue, Failure, HealthMonitor, Observation, decide, healthy
from sparkd.agent.engine.load_progress import LoadProgress
from sparkd.base.config.settings import Supervise
from sparkd.base.host.sockets import Unanswered
from sparkd.base.lib.endings import Ending
from sparkd.base.lib.errors import EngineDeadError, StalledError
from sparkd.base.lib.main_loop import MainLoop
from sparkd.base.lib.systemd import Notifier
from sparkd.base.vllm.api import Completion, Counters, Endpoint, parse_counters

METRICS = Path(__file__).parent / "engine-logs" / "metrics.txt"
LIMITS = Supervise(stall_seconds=360, canary_seconds=300)
START = healthy(0)
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


def compiling(seconds: float) -> Observation:
    """One request runs, and no token has come."""
    return replace(at(seconds, running=1), compiles=True)


def test_a_request_that_waits_for_a_compiler_is_no_stall_for_half_an_hour() -> None:
    waits = [compiling(seconds) for seconds in range(10, 1800, 10)]
    decision = look(at(1), *waits)
    assert isinstance(decision, Continue)
    assert not decision.degraded
    assert isinstance(look(at(1), *waits, *(compiling(seconds) for seconds in range(1800, 2160, 10))), Continue)
    assert isinstance(look(at(1), *waits, *(compiling(seconds) for seconds in range(1800, 2180, 10))), StalledError)


def test_pauses_between_compilers_make_the_half_hour_no_longer() -> None:
    seen = [
        at(1),
        *(compiling(seconds) if seconds % 300 else at(seconds, running=1) for seconds in range(10, 2180, 10)),
    ]
    assert isinstance(look(*seen[:-3]), Continue)
    assert isinstance(look(*seen), StalledError)


def test_after_the_compiler_a_hang_counts_from_its_end() -> None:
    decision = look(at(1), compiling(10), compiling(400), *(at(seconds, running=1) for seconds in range(410, 760, 10)))
    assert isinstance(decision, Continue)
    assert isinstance(decide(decision.state, at(760, running=1), LIMITS), StalledError)


PREFILL = Counters(1, 0, prompt_tokens=5, generation_tokens=5, iterations=6)


@pytest.mark.parametrize(
    ("seen", "kind"),
    [
        pytest.param([at(1, health=503)], EngineDeadError, id="503 is death at once"),
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
            [at(300, None), at(420, None, canary=FAILED), at(661, None)], StalledError, id="no counters, canaries fail"
        ),
    ],
)
def test_an_engine_continues_is_dead_or_stalled(seen: list[Observation], kind: type[Continue | Failure]) -> None:
    assert isinstance(look(*seen), kind)


@pytest.mark.parametrize(
    ("seen", "degraded", "wants_canary"),
    [
        pytest.param([at(seconds) for seconds in range(0, 305, 5)], "", True, id="idle"),
        pytest.param([at(seconds, None) for seconds in range(0, 305, 5)], "", True, id="no statistics"),
        pytest.param([at(s, s, running=1) for s in range(0, 2000, 5)], "", False, id="tokens of others are proof"),
        pytest.param([at(0), at(310), at(315, 6, canary=TOKEN)], "", False, id="a canary that came back is proof"),
        pytest.param(
            [at(300), at(310, canary=FAILED)], "a canary completion failed: HTTP 500", False, id="one failure: pause"
        ),
        pytest.param(
            [at(300), at(310, canary=FAILED), at(331)],
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


def test_a_monitor_probes_often_after_an_error_in_the_log_and_spares_a_canary_that_fails() -> None:
    requests: list[str] = []
    problems: list[str] = []

    def on_check(trouble: str, _: Counters | None) -> None:
        problems.append(trouble)

    def reply(request: str, _: str) -> Reply:
        requests.append(request)
        canary = "POST /v1/completions"
        dead = canary in requests and requests[requests.index(canary) :].count("GET /health") > 4
        return {"GET /health": (503 if dead else 200, b""), "GET /metrics": (404, b"")}.get(request, (500, b"no"))

    progress = LoadProgress(failing_since=time.monotonic())
    ended: list[object] = []
    with engine(reply) as port, MainLoop(Notifier(), {}) as main:
        endpoint = Endpoint("127.0.0.1", port, "tiny")
        monitor = HealthMonitor(main, endpoint, lambda: progress, Supervise(canary_seconds=1), 5.0, on_check)
        thread = threading.Thread(target=lambda: ended.append(monitor.run()))
        thread.start()
        until(lambda: ended)
        thread.join()
    (error,) = ended
    assert isinstance(error, EngineDeadError)
    assert error.reason == "the engine is dead: /health answers 503"
    assert "a canary completion failed: HTTP 500 no" in problems
    assert requests.count("POST /v1/completions") == 1
    assert (monitor.figures.canaries, monitor.figures.canaries_failed) == (1, 1)


def test_a_request_that_seems_to_hang_is_answered_by_a_canary_at_once() -> None:
    requests: list[str] = []
    problems: list[str] = []
    read: list[Counters | None] = []
    metrics = METRICS.read_bytes()

    def on_check(trouble: str, counters: Counters | None) -> None:
        read.append(counters)
        problems.append(trouble)

    def reply(request: str, _: str) -> Reply:
        requests.append(request)
        return {"GET /health": (200, b""), "GET /metrics": (200, metrics)}.get(request, token())

    began = time.monotonic()
    came_at = began + 0.5  # after the monitor has begun
    with engine(reply) as port, MainLoop(Notifier(), {}) as main:
        endpoint = Endpoint("127.0.0.1", port, "tiny")
        progress = LoadProgress(failing_since=began)  # probes are frequent

        def unanswered() -> tuple[Unanswered, ...]:
            return (Unanswered(time.monotonic() - came_at),)

        monitor = HealthMonitor(main, endpoint, lambda: progress, Supervise(), 5.0, on_check, unanswered)

        ended = threading.Event()

        def raise_if_ended() -> None:
            if ended.is_set():
                raise LookupError("the rank ended")

        main.endings.end_by(Ending(raise_if_ended))

        def run() -> None:
            with pytest.raises(LookupError, match="the rank ended"):
                monitor.run()

        thread = threading.Thread(target=run)
        thread.start()
        until(lambda: "POST /v1/completions" in requests)
        took = time.monotonic() - began
        until(lambda: monitor.figures.canaries == 1)
        ended.set()
        main.wake()
        thread.join()
    assert set(read) == {parse_counters(metrics)}
    assert monitor.figures.canaries_failed == 0
    assert 0 < (monitor.figures.canary_seconds or 0) < 2 and monitor.figures.probe_seconds is not None
    assert DOUBT_SECONDS <= took - 0.5 < DOUBT_SECONDS + 2
    assert set(problems) == {""}
    assert requests.count("POST /v1/completions") == 1
