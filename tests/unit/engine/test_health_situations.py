"""Situations of a serving engine, second by second: which are hangs, how soon each shows, and which are none.

An engine of the test stands behind `decide`; it is probed as often as HealthMonitor would.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest

from sparkd.agent.engine.health import Continue, Observation, decide, healthy
from sparkd.agent.engine.health_monitor import PROBE_SECONDS, TROUBLED_PROBE_SECONDS
from sparkd.base.config.settings import Supervise
from sparkd.base.host.sockets import PendingRequest
from sparkd.base.vllm.api import Completion
from sparkd.base.vllm.counters import Counters

LIMITS = Supervise(stall_seconds=360, canary_seconds=300)
LATEST_SECONDS = 20.0
"""From the first request that hangs to `degraded`."""
PROBE_TIMEOUT_SECONDS, CANARY_TIMEOUT_SECONDS = 5.0, 120.0
NEVER = float("inf")
IDLE = Counters(running=0, waiting=0, prompt_tokens=5, generation_tokens=5, iterations=5)


def idle(_: float) -> Counters:
    return IDLE


def no_connections(_: float) -> tuple[PendingRequest, ...]:
    return ()


def no_failure(_: float) -> bool:
    return False


def each(seconds: float) -> Callable[[float], bool]:
    """One probe fails in this time, and no other."""
    return lambda now: now % seconds < PROBE_SECONDS


def since(second: float) -> Callable[[float], bool]:
    return lambda now: now >= second


def canary_at_once(sent: float) -> float:
    return sent + 0.1


@dataclass(frozen=True)
class Situation:
    """What an engine does at each monotonic second. `canary`: when one that is sent then is answered."""

    counters: Callable[[float], Counters | None] = idle
    unanswered: Callable[[float], tuple[PendingRequest, ...]] = no_connections
    canary: Callable[[float], float] = canary_at_once
    canary_error: str = ""
    """What each canary gets instead of a token."""
    health_fails: Callable[[float], bool] = no_failure
    metrics_fail: Callable[[float], bool] = no_failure
    computes: Callable[[float], bool] = no_failure
    compiles: Callable[[float], bool] = no_failure
    most_canaries: int = 2
    """How many it may cost, where it is no hang."""


@dataclass
class Outcome:
    degraded: list[tuple[float, str]]
    canaries: list[float]
    ended: float = NEVER
    reason: str = ""

    @property
    def is_calm(self) -> bool:
        return not self.degraded and self.ended == NEVER


def watch(situation: Situation, seconds: float, limits: Supervise = LIMITS, first: float = 0.0) -> Outcome:
    """Probe an engine in this situation, for the first time at second `first`, until it is ended or for so long."""
    outcome, state, at = Outcome([], []), healthy(0.0), first
    sent: float | None = None
    while at < seconds and outcome.ended == NEVER:
        answers = not situation.health_fails(at)
        is_read = answers and not situation.metrics_fail(at)
        if not is_read:
            at += PROBE_TIMEOUT_SECONDS
        canary, answer_at = None, situation.canary(sent) if sent is not None else NEVER
        if sent is not None and at >= min(answer_at, sent + CANARY_TIMEOUT_SECONDS):
            late = answer_at > sent + CANARY_TIMEOUT_SECONDS
            token, error = not late and not situation.canary_error, "no answer within 120 s" if late else ""
            canary, sent = Completion(token, error or situation.canary_error), None
        observation = Observation(
            at,
            health=200 if answers else None,
            counters=situation.counters(at) if is_read else None,
            canary=canary,
            # The canary's own, too.
            unanswered=situation.unanswered(at) + (() if sent is None else (PendingRequest(at - sent),)),
            computes=situation.computes(at),
            compiles=situation.compiles(at),
        )
        decision = decide(state, observation, limits)
        if not isinstance(decision, Continue):
            outcome.ended, outcome.reason = at, decision.reason
            break
        state = decision.state
        if decision.degraded:
            outcome.degraded.append((at, decision.degraded))
        if decision.wants_canary:
            assert sent is None, "one canary at a time"
            sent = at
            outcome.canaries.append(at)
        at += TROUBLED_PROBE_SECONDS if state.troubled else PROBE_SECONDS
    return outcome


def request_at(
    second: float, end: float = NEVER, *, begun: bool = False
) -> Callable[[float], tuple[PendingRequest, ...]]:
    """One request, as the kernel sees it, until it is answered; `begun`: with headers at once."""
    return lambda now: (PendingRequest(now - second, begun),) if second <= now < end else ()


def polled(every: float, kept: float = NEVER) -> Callable[[float], tuple[PendingRequest, ...]]:
    """A connection of a monitor, which the server closes when it is idle for longer than `kept`."""
    return lambda now: (PendingRequest(now % every, begun=True),) if now % every <= kept else ()


def never(_: float) -> float:
    return NEVER


def steps(every: float, begin: float = 0.0, end: float = NEVER, kv_only: bool = False) -> Callable[[float], Counters]:
    """An engine that runs one request from `begin` on, and ends a step each `every` seconds until `end`."""

    def counters(now: float) -> Counters:
        done = max(0, int((min(now, end) - begin) // every))
        if not done:
            return IDLE
        return tokens_made(running=1, kv_usage=done / 1000, tokens=0 if kv_only else done)

    return counters


def tokens_made(running: float, kv_usage: float, tokens: float) -> Counters:
    return Counters(running, 0, 5 + tokens, 5 + tokens, 5 + tokens, kv_usage)


def after_another(at: float) -> Callable[[float], Counters]:
    """Another request was answered just then."""
    return lambda now: IDLE if now < at else tokens_made(0, 0, 3)


def under_requests(at: float) -> Callable[[float], Counters]:
    return steps(0.5, at - 9, at)


HANGS: dict[str, Callable[[float], Situation]] = {
    "from idle": lambda at: Situation(unanswered=request_at(at), canary=never),
    "from idle, the client gives up": lambda at: Situation(unanswered=request_at(at, at + 8), canary=never),
    "under requests": lambda at: Situation(under_requests(at), request_at(at), never),
    "right after another request was answered": lambda at: Situation(after_another(at), request_at(at), never),
    "from idle, a stream": lambda at: Situation(unanswered=request_at(at, begun=True), canary=never),
    "a stream, after another request": lambda at: Situation(after_another(at), request_at(at, begun=True), never),
    "from idle, a stream, and connections that are kept for ever": lambda at: Situation(
        unanswered=lambda now: polled(7)(now) + request_at(at, begun=True)(now),
        canary=lambda sent: NEVER if sent >= at else sent + 0.1,
    ),
    "the API server": lambda at: Situation(health_fails=since(at), unanswered=request_at(at)),
    "from idle, and some probes fail": lambda at: Situation(
        unanswered=request_at(at), canary=never, health_fails=each(60), metrics_fail=each(35)
    ),
}


def failing_probes(health: tuple[int, ...], metrics: tuple[int, ...]) -> dict[str, Situation]:
    return {f"one /health in {every} s fails": Situation(health_fails=each(every)) for every in health} | {
        f"one /metrics in {every} s fails": Situation(metrics_fail=each(every)) for every in metrics
    }


def hung_under_requests(situation: Situation) -> Callable[[float], Situation]:
    return lambda at: replace(situation, counters=under_requests(at), canary=never)


SOME_FAIL = failing_probes((60, 200, 350), (60, 200, 350))
HANGS |= {f"under requests, and {name}": hung_under_requests(situation) for name, situation in SOME_FAIL.items()}


@pytest.mark.parametrize("situation", HANGS.values(), ids=HANGS)
@pytest.mark.parametrize("offset", [0.01, 1.0, 2.9, 3.1, 4.99])
def test_a_hang_shows_within_20_s_of_its_first_request(situation: Callable[[float], Situation], offset: float) -> None:
    began = 100.0 + offset
    outcome = watch(situation(began), 200)
    assert outcome.degraded
    assert began < outcome.degraded[0][0] <= began + LATEST_SECONDS


@pytest.mark.parametrize("situation", HANGS.values(), ids=HANGS)
@pytest.mark.parametrize("stall", [10, 15, 60, 360])
def test_a_hang_is_ended_by_the_limit(situation: Callable[[float], Situation], stall: int) -> None:
    outcome = watch(situation(102.5), 1000, Supervise(stall_seconds=stall, canary_seconds=300))
    assert 102.5 + stall - PROBE_SECONDS <= outcome.ended <= 102.5 + stall + 2 * PROBE_SECONDS


def test_a_hang_without_any_request_is_found_by_the_canary_that_is_due() -> None:
    outcome = watch(Situation(canary=never), 1000)
    assert outcome.canaries[0] == 300
    assert 300 < outcome.degraded[0][0] <= 300 + LATEST_SECONDS
    assert 660 <= outcome.ended <= 665


def test_canaries_that_are_switched_off_are_not_sent_in_doubt_either() -> None:
    hung = Situation(unanswered=request_at(10), canary=never)
    assert watch(hung, 400, Supervise(canary_seconds=0)) == Outcome(degraded=[], canaries=[])


@pytest.mark.parametrize(
    ("failing", "latest"),
    [
        (each(20), 475),
        (each(60), 475),
        (each(350), 475),
        (lambda now: now % 100 < 80, 590),  # progress until 100 shows at 180, and is 360 s ago at the read of 580
    ],
)
def test_a_hang_under_requests_is_ended_without_canaries_though_probes_fail(
    failing: Callable[[float], bool], latest: float
) -> None:
    hung = Situation(counters=steps(0.5, 91, 100))
    for situation in (replace(hung, health_fails=failing), replace(hung, metrics_fail=failing)):
        outcome = watch(situation, 1000, Supervise(stall_seconds=360, canary_seconds=0))
        assert 455 <= outcome.ended <= latest


@pytest.mark.parametrize("stall", [60, 360])
def test_where_the_counters_of_running_requests_are_lost_a_canary_decides_after_half_a_minute(stall: int) -> None:
    lost = Situation(counters=steps(0.5, 91, 300), metrics_fail=since(110), canary=never)
    outcome = watch(lost, 1000, Supervise(stall_seconds=stall, canary_seconds=300))
    assert 135 <= outcome.canaries[0] <= 145
    assert outcome.canaries[0] + stall <= outcome.ended <= outcome.canaries[0] + stall + 2 * PROBE_SECONDS


@pytest.mark.parametrize(
    "compiles", [lambda now: now < 1500, lambda now: now < 1500 and now % 100 > 5], ids=["all the time", "with gaps"]
)
def test_while_a_compiler_excuses_the_wait_no_further_canary_is_sent(compiles: Callable[[float], bool]) -> None:
    first_step = Situation(
        unanswered=request_at(10, 1500), canary=lambda sent: max(1500.0, sent + 0.1), compiles=compiles
    )
    outcome = watch(first_step, 1500)
    assert outcome.is_calm
    assert len(outcome.canaries) == 1


@pytest.mark.parametrize("counters", [idle, lambda _: None])
def test_after_a_compile_a_canary_that_failed_meanwhile_is_repeated(
    counters: Callable[[float], Counters | None],
) -> None:
    compiled = Situation(
        counters, request_at(10, 700), canary=lambda sent: max(700.0, sent + 0.1), compiles=lambda now: now < 700
    )
    outcome = watch(compiled, 2000)
    assert outcome.ended == NEVER
    assert all(700 <= at <= 730 for at, _ in outcome.degraded)
    hung = watch(replace(compiled, canary=never), 2000)
    assert 1050 <= hung.ended <= 1075


@pytest.mark.parametrize("stall", [10, 360])
def test_an_idle_engine_is_never_ended_for_single_slow_probes(stall: int) -> None:
    for every in (12, 20, 60, 200, 350):
        limits = Supervise(stall_seconds=stall, canary_seconds=300)
        assert watch(Situation(health_fails=each(every)), 4000, limits).ended == NEVER
        assert watch(Situation(metrics_fail=each(every)), 4000, limits).ended == NEVER


def test_requests_that_queue_in_an_engine_without_statistics_are_no_reason_for_a_canary() -> None:
    queued = Situation(counters=lambda _: None, unanswered=lambda now: (PendingRequest(now % 20),), canary=never)
    outcome = watch(queued, 1000)
    assert outcome.canaries[0] == 300
    assert 300 + LIMITS.stall_seconds <= outcome.ended < NEVER


def queue_of_eight(now: float) -> tuple[PendingRequest, ...]:
    """Clients whose requests take 30 s each, one after the other."""
    return tuple(PendingRequest((now + ahead) % 240) for ahead in range(0, 240, 30))


@pytest.mark.parametrize(
    "hung",
    [
        Situation(canary=never),
        Situation(canary_error="HTTP 500"),
        Situation(unanswered=queue_of_eight, canary_error="HTTP 500"),
        Situation(unanswered=polled(15, kept=5), canary=never),
        Situation(unanswered=request_at(250), canary=never),
    ],
    ids=["no client", "refused", "refused, and clients wait", "only polled", "one request that waits for ever"],
)
def test_a_gpu_at_work_for_others_excuses_no_hang_without_statistics(hung: Situation) -> None:
    """Another program may use it."""
    outcome = watch(replace(hung, counters=lambda _: None, computes=lambda _: True), 4 * 3600)
    assert 300 + 3 * LIMITS.stall_seconds <= outcome.ended < 1600


PREFILL_SECONDS = 300.0


def slow_uploads(now: float) -> tuple[PendingRequest, ...]:
    """One that sends a byte each four seconds, one that has stopped, for ever."""
    return PendingRequest(now % 4.0), PendingRequest(now + 50.0)


PREFILL, STREAM = request_at(100, 100 + PREFILL_SECONDS), steps(8, 100)
NO_HANGS = {
    "idle, with connections or without": Situation(),
    "a prefill of minutes, in steps of 8 s, that counts no token": Situation(steps(8, 100, kv_only=True), PREFILL),
    "a prefill of minutes, in steps of 35 s, on a GPU that computes": Situation(
        steps(35, 100, kv_only=True),
        PREFILL,
        canary=lambda sent: 400.5 if 100 <= sent < 400 else sent + 0.1,
        computes=lambda _: True,
    ),
    "300 requests queued, the first canary behind them": Situation(
        lambda now: steps(3, 100)(now) if now < 700 else IDLE,
        lambda now: (PendingRequest(now - 100),) * 299 if 100 < now < 700 else (),
        canary=lambda sent: 700.0 if sent > 90 else sent + 0.1,
    ),
    "streams": Situation(lambda now: steps(5, 100)(now) if now < 700 else tokens_made(0, 0, 120)),
    "clients that send slowly or not at all": Situation(unanswered=slow_uploads, most_canaries=200),
    "a request that waits for something else than the engine": Situation(unanswered=request_at(50), most_canaries=3),
    "no statistics, a long request": Situation(lambda _: None, request_at(50, 110)),
    "a first step of ten seconds after idleness": Situation(
        unanswered=request_at(50, 60), canary=lambda sent: 60.0 if sent < 60 else sent + 0.1, most_canaries=3
    ),
    "a stream whose first token comes after ten seconds": Situation(
        unanswered=request_at(50, 60, begun=True),
        canary=lambda sent: 60.0 if 50 < sent < 60 else sent + 0.1,
        most_canaries=3,
    ),
    **{
        f"idle, and {name}": situation
        for name, situation in failing_probes((11, 60, 200, 350), (6, 60, 200, 350)).items()
    },
    "idle, and its counters are lost for ever": Situation(metrics_fail=since(50)),
    "streams, and each second /health fails": Situation(STREAM, health_fails=each(11)),
    "streams, and /metrics fails for most of the time": Situation(
        STREAM, metrics_fail=lambda now: now % 100 < 80, most_canaries=8
    ),
    "streams, and their counters are lost": Situation(STREAM, metrics_fail=since(200), most_canaries=4),
    "a stream whose end is not seen, since the counters are lost": Situation(
        lambda now: STREAM(now) if now < 210 else IDLE, metrics_fail=since(200), most_canaries=4
    ),
    "polled each second": Situation(unanswered=polled(1)),
    "polled each 15 s, and not kept": Situation(unanswered=polled(15, kept=5)),
    "polled each 15 s on a connection that is kept for ever": Situation(unanswered=polled(15), most_canaries=54),
    "polled each 7 s on a connection that is kept for ever": Situation(unanswered=polled(7), most_canaries=80),
}


@pytest.mark.parametrize("situation", NO_HANGS.values(), ids=NO_HANGS)
@pytest.mark.parametrize("first", [0.0, 1.3, 2.6, 4.9])
def test_a_situation_that_is_no_hang_raises_no_alarm(situation: Situation, first: float) -> None:
    outcome = watch(situation, 800, first=first)
    assert outcome.is_calm, outcome
    assert len(outcome.canaries) <= situation.most_canaries, "a canary costs the engine a step"


def test_a_gpu_at_work_delays_the_alarm_and_the_end_which_comes_all_the_same() -> None:
    hung = Situation(unanswered=request_at(101), canary=never)
    waiting, working = watch(hung, 1200), watch(replace(hung, computes=lambda _: True), 1200)
    assert waiting.degraded[0][0] - 101 < LATEST_SECONDS
    assert 36 <= working.degraded[0][0] - 101 <= 42
    assert 360 <= waiting.ended - 101 <= 370
    assert 3 * 360 <= working.ended - 101 <= 3 * 360 + 10


def test_a_prompt_that_is_one_step_of_many_minutes_is_not_ended_while_the_gpu_computes() -> None:
    step = Situation(counters=steps(1000, 100), unanswered=request_at(100, 1100), canary=never)
    assert watch(replace(step, computes=lambda now: now < 1100), 1200).ended == NEVER
    # NVML's figure is of the last moment.
    assert watch(replace(step, computes=lambda now: now % 25 < 3), 1200).ended == NEVER
    unseen = Situation(counters=lambda _: None, canary=never)  # nothing but a canary, which waits behind the prompt
    assert watch(replace(unseen, computes=lambda _: True), 1200).ended == NEVER
    broken_off = watch(replace(step, computes=lambda now: now < 700), 1200).ended
    assert 725 <= broken_off <= 735
