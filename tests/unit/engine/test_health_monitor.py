"""The monitor of a serving engine, against an engine's HTTP server: when it probes, and what it does with a canary."""

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

from tests.unit.engine.recorded_logs import LOGS
from tests.unit.engine_server import Reply, engine, token
from tests.unit.nodes import until

from sparkd.agent.daemon.serving import makes_token
from sparkd.agent.engine.health import DOUBT_SECONDS, Failure
from sparkd.agent.engine.health_monitor import HealthMonitor
from sparkd.agent.engine.load_progress import LoadProgress
from sparkd.base.config.settings import Supervise
from sparkd.base.host.sockets import PendingRequest
from sparkd.base.lib.endings import Ending
from sparkd.base.lib.errors import EngineDeadError, StalledError
from sparkd.base.lib.main_loop import MainLoop, never
from sparkd.base.lib.systemd import Notifier
from sparkd.base.status.figures import HealthReport
from sparkd.base.vllm.api import Endpoint
from sparkd.base.vllm.counters import Counters, parse_counters

CANARY = "POST /v1/completions"


@dataclass
class Record:
    """What a monitor has sent, found and reported."""

    requests: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    counters: list[Counters | None] = field(default_factory=list)
    figures: HealthReport = field(default_factory=HealthReport)
    given_up: Failure | None = None

    def note(self, problem: str, counters: Counters | None, figures: HealthReport) -> None:
        self.problems.append(problem)
        self.counters.append(counters)
        self.figures = figures


@contextmanager
def monitored(
    reply: Callable[[str, Record], Reply],
    limits: Supervise,
    unanswered: Callable[[], tuple[PendingRequest, ...]] = tuple,
    unreachable: Callable[[], str] = str,
    idle: Callable[[], bool] = never,
) -> Iterator[Record]:
    """A monitor in a thread, which probes often, since the log has an error."""
    record, over = Record(), threading.Event()

    def answer(request: str, _: str) -> Reply:
        record.requests.append(request)
        return reply(request, record)

    def raise_if_over() -> None:
        if over.is_set():
            raise LookupError("the rank ended")

    with engine(answer) as port, MainLoop(Notifier(), {}) as main:
        endpoint, progress = Endpoint("127.0.0.1", port, "tiny"), LoadProgress(failing_since=time.monotonic())
        monitor = HealthMonitor(
            main, endpoint, lambda: progress, limits, 5.0, record.note, unanswered, unreachable=unreachable, idle=idle
        )
        main.endings.end_by(Ending(raise_if_over))

        def run() -> None:
            with suppress(LookupError):
                record.given_up = monitor.run()

        thread = threading.Thread(target=run)
        thread.start()
        try:
            yield record
        finally:
            over.set()
            main.wake()
            thread.join()


def test_an_engine_is_given_up_that_says_it_is_dead_and_a_canary_that_fails_is_not_repeated_at_once() -> None:
    def reply(request: str, record: Record) -> Reply:
        requests = record.requests
        is_dead = CANARY in requests and requests[requests.index(CANARY) :].count("GET /health") > 4
        return {"GET /health": (503 if is_dead else 200, b""), "GET /metrics": (404, b"")}.get(request, (500, b"no"))

    with monitored(reply, Supervise(canary_seconds=1)) as record:
        until(lambda: record.given_up)
    assert isinstance(record.given_up, EngineDeadError)
    assert record.given_up.reason == "the engine is dead: /health answers 503"
    assert "a canary completion failed: HTTP 500 no" in record.problems
    assert record.requests.count(CANARY) == 1
    assert record.figures.canaries == 1
    assert record.figures.canaries_failed == 1


def test_an_engine_that_refuses_everything_while_it_scales_is_not_dead() -> None:
    scaling = b'{"error":"The model is currently scaling. Please try again later."}'
    with monitored(lambda _request, _record: (503, scaling), Supervise(canary_seconds=1)) as record:
        until(lambda: record.figures.canaries_failed)
    assert record.given_up is None


def test_a_request_that_seems_to_hang_is_answered_by_a_canary_at_once() -> None:
    metrics = (LOGS / "metrics.txt").read_bytes()
    came_at = time.monotonic() + 0.5  # after the monitor has begun

    def reply(request: str, _: Record) -> Reply:
        return {"GET /health": (200, b""), "GET /metrics": (200, metrics)}.get(request, token())

    def unanswered() -> tuple[PendingRequest, ...]:
        return (PendingRequest(time.monotonic() - came_at),)

    with monitored(reply, Supervise(), unanswered) as record:
        until(lambda: CANARY in record.requests)
        took = time.monotonic() - came_at
        until(lambda: record.figures.canaries == 1)
    assert DOUBT_SECONDS <= took < DOUBT_SECONDS + 2
    assert record.requests.count(CANARY) == 1
    assert record.figures.canaries_failed == 0
    assert 0 < (record.figures.canary_seconds or 0) < 2
    assert record.figures.probe_seconds is not None
    assert set(record.counters) == {parse_counters(metrics)}
    assert set(record.problems) == {""}


def test_an_engine_that_nobody_can_reach_is_degraded_and_stays_until_it_could_answer() -> None:
    """As one whose own address went with the LAN."""
    gone = ["this node no longer has 192.168.1.9"]
    no_answer = 99, b""  # no status of HTTP
    limits = Supervise.model_construct(stall_seconds=1)
    with monitored(lambda *_: no_answer, limits, unreachable=lambda: "".join(gone)) as record:
        until(lambda: len(record.problems) > 9)  # 0.2 s each
        assert record.given_up is None
        assert set(record.problems) == {*gone}
        gone.clear()
        until(lambda: record.given_up)
    assert isinstance(record.given_up, StalledError)


def test_what_was_known_before_nobody_could_reach_an_engine_still_holds_afterwards() -> None:
    """A request from before is late still, and the canary that was on its way is void."""
    metrics, began, gone = (LOGS / "metrics.txt").read_bytes(), time.monotonic(), list[str]()

    def reply(request: str, record: Record) -> Reply:
        if request == CANARY and record.requests.count(CANARY) == 1:
            gone.append("no address")
        replies = {"GET /health": (200, b""), "GET /metrics": (200, metrics)}
        return (99, b"") if gone else replies.get(request, token())

    def unanswered() -> tuple[PendingRequest, ...]:
        return (PendingRequest(time.monotonic() - began - 0.5),)

    with monitored(reply, Supervise(), unanswered, lambda: "".join(gone)) as record:
        until(lambda: record.problems.count("no address") > 2)
        gone.clear()
        until(lambda: record.figures.canaries == 1)
    assert record.requests.count(CANARY) == 2
    assert record.figures.canaries_failed == 0
    assert set(record.problems) == {"", "no address"}


def test_an_engine_that_sleeps_is_kept_while_its_ranks_are_idle_and_needs_no_token_to_prove_that_it_works() -> None:
    awake = b'sleep_state="awake"} '
    page = (LOGS / "metrics.txt").read_bytes().replace(awake + b"1.0", awake + b"0.0")

    def reply(request: str, _: object) -> Reply:
        return {"GET /health": (200, b""), "GET /metrics": (200, page)}.get(request, (500, b"asleep"))

    limits = Supervise.model_construct(stall_seconds=1, canary_seconds=1)
    with monitored(reply, limits, idle=lambda: True) as record:
        until(lambda: len(record.problems) > 9)  # 0.2 s each
    assert record.given_up is None
    assert CANARY not in record.requests
    assert {problem[:17] for problem in record.problems} == {"the engine sleeps"}
    with monitored(reply, limits) as record:
        until(lambda: record.given_up)
    with engine(reply) as port:
        assert asyncio.run(makes_token(Endpoint("127.0.0.1", port, "tiny"), 5))
