"""The monitor of a serving engine, against an engine's HTTP server: when it probes, and what it does with a canary."""

import threading
import time

import pytest
from tests.unit.engine.engine_pages import LOGS
from tests.unit.engine_server import Reply, engine, token
from tests.unit.nodes import until

from sparkd.agent.engine.health import DOUBT_SECONDS
from sparkd.agent.engine.health_monitor import HealthMonitor
from sparkd.agent.engine.load_progress import LoadProgress
from sparkd.base.config.settings import Supervise
from sparkd.base.host.sockets import PendingRequest
from sparkd.base.lib.endings import Ending
from sparkd.base.lib.errors import EngineDeadError
from sparkd.base.lib.main_loop import MainLoop
from sparkd.base.lib.systemd import Notifier
from sparkd.base.status.figures import HealthReport
from sparkd.base.vllm.api import Endpoint
from sparkd.base.vllm.counters import Counters, parse_counters


def test_a_monitor_probes_often_after_an_error_in_the_log_and_spares_a_canary_that_fails() -> None:
    requests: list[str] = []
    problems: list[str] = []

    def on_check(trouble: str, _counters: Counters | None, _figures: HealthReport) -> None:
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
    metrics = (LOGS / "metrics.txt").read_bytes()

    def on_check(trouble: str, counters: Counters | None, _figures: HealthReport) -> None:
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

        def unanswered() -> tuple[PendingRequest, ...]:
            return (PendingRequest(time.monotonic() - came_at),)

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
