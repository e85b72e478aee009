"""When an engine is given up, degraded, or sent for a canary. The situations are in test_health_situations.py."""

import pytest
from msgspec.structs import replace

from sparkd.agent.engine.health import Continue, Failure, Observation, decide, healthy
from sparkd.base.config.settings import Supervise
from sparkd.base.lib.errors import EngineDeadError, StalledError
from sparkd.base.vllm.api import Completion
from sparkd.base.vllm.counters import Counters

LIMITS = Supervise(stall_seconds=360, canary_seconds=300)
START = healthy(0)
TOKEN, FAILED = Completion(token=True), Completion(token=False, error="HTTP 500")


def observe(*observations: Observation, limits: Supervise = LIMITS) -> Continue | Failure:
    decision: Continue | Failure = Continue(START)
    for observation in observations:
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


def unread(seconds: float, health: int | None = None) -> Observation:
    """A probe without counters, while no rank does anything."""
    return Observation(seconds, health, idle=True)


def waiting(seconds: int, **changes: object) -> list[Observation]:
    """A probe each second, of an engine that makes no token of a request."""
    return [replace(at(second, running=1), **changes) for second in range(1, seconds + 1)]


def sleeping(
    seconds: float, canary: Completion | None = None, *, idle: bool = True, asleep: bool = True
) -> Observation:
    """A request waits in an engine that a client has put to sleep."""
    counters = Counters(running=0, waiting=1, prompt_tokens=5, generation_tokens=5, iterations=5, asleep=asleep)
    return Observation(seconds, 200, counters, canary, idle=idle)


@pytest.mark.parametrize("changes", [{}, {"idle": False, "computes": True}], ids=["idle", "another program computes"])
def test_an_engine_that_sleeps_is_degraded_for_as_long_as_that_lasts_and_not_ended(changes: dict[str, bool]) -> None:
    probes = (replace(sleeping(seconds, FAILED), **changes) for seconds in range(5, 2000, 5))
    asleep = observe(sleeping(1, asleep=False), *probes)
    assert isinstance(asleep, Continue)
    assert "the engine sleeps" in asleep.degraded
    assert not asleep.wants_canary
    awake = decide(asleep.state, sleeping(2000, asleep=False), LIMITS)
    assert isinstance(awake, Continue)
    assert not awake.degraded


def test_a_wake_up_that_hangs_ends_as_a_stall_does() -> None:
    hangs = [sleeping(seconds, idle=False) for seconds in range(10, 375, 5)]
    decision = observe(sleeping(5), *hangs[:-2])
    assert isinstance(decision, Continue)
    assert "the engine sleeps" in decision.degraded
    assert isinstance(observe(sleeping(5), *hangs), StalledError)


@pytest.mark.parametrize(("deferred", "ends"), [(0, True), (1, False)])
def test_a_request_that_waits_for_its_client_is_no_hang(deferred: int, *, ends: bool) -> None:
    counters = Counters(0, 1, prompt_tokens=5, generation_tokens=5, iterations=5, deferred=deferred)
    before = observe(at(1), *(Observation(seconds, 200, counters) for seconds in range(5, 40, 5)))
    assert isinstance(before, Continue)
    decision = decide(before.state, Observation(40, 200, counters, idle=True), LIMITS)
    assert isinstance(decision, StalledError if ends else Continue)
    assert not isinstance(decision, Continue) or not decision.degraded


def test_requests_that_are_all_deferred_for_as_long_as_a_stall_degrade_the_service_and_do_not_end_it() -> None:
    def deferring(seconds: float, running: int) -> Observation:
        return Observation(seconds, 200, Counters(running, 1, seconds, seconds, seconds, deferred=1), TOKEN, idle=True)

    long = observe(*(deferring(seconds, running=0) for seconds in range(5, 371, 5)))
    assert isinstance(long, Continue)
    assert "all requests are deferred for 365 s" in long.degraded
    for observation in (deferring(375, running=1), at(380, 500)):
        decision = decide(long.state, observation, LIMITS)
        assert isinstance(decision, Continue)
        assert not decision.degraded


def compiling(seconds: float) -> Observation:
    """One request runs, and no token has come."""
    return replace(at(seconds, running=1), compiles=True)


def test_a_request_that_waits_for_a_compiler_is_no_stall_for_half_an_hour() -> None:
    waits = [compiling(seconds) for seconds in range(10, 1800, 10)]
    decision = observe(at(1), *waits)
    assert isinstance(decision, Continue)
    assert not decision.degraded
    assert isinstance(observe(at(1), *waits, *(compiling(seconds) for seconds in range(1800, 2160, 10))), Continue)
    assert isinstance(observe(at(1), *waits, *(compiling(seconds) for seconds in range(1800, 2180, 10))), StalledError)


def test_pauses_between_compilers_make_the_half_hour_no_longer() -> None:
    observations = [
        at(1),
        *(compiling(seconds) if seconds % 300 else at(seconds, running=1) for seconds in range(10, 2180, 10)),
    ]
    assert isinstance(observe(*observations[:-3]), Continue)
    assert isinstance(observe(*observations), StalledError)


def test_after_the_compiler_a_hang_counts_from_its_end() -> None:
    decision = observe(
        at(1), compiling(10), compiling(400), *(at(seconds, running=1) for seconds in range(410, 760, 10))
    )
    assert isinstance(decision, Continue)
    assert isinstance(decide(decision.state, at(760, running=1), LIMITS), StalledError)


PREFILL = Counters(1, 0, prompt_tokens=5, generation_tokens=5, iterations=6)


@pytest.mark.parametrize(
    ("observations", "kind"),
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
        pytest.param(
            [at(10, running=1), unread(369), at(369, running=1)], Continue, id="requests, a failed probe, in time"
        ),
        pytest.param(
            [at(10, running=1), unread(369), at(370, running=1)], StalledError, id="requests, a failed probe, too long"
        ),
        pytest.param(
            [
                at(10, running=1),
                *(unread(s, 200) for s in range(15, 35, 5)),
                at(200, 6, running=1),
                at(559, 6, running=1),
            ],
            Continue,
            id="progress that failed probes have missed",
        ),
        pytest.param(
            [at(10, running=1), *(unread(s) for s in range(15, 369, 5))],
            Continue,
            id="requests may end while nothing answers: idle ranks prove no hang",
        ),
        pytest.param(
            [at(10, running=1), *(unread(s) for s in range(15, 375, 5))], StalledError, id="nothing answers, too long"
        ),
        pytest.param(
            [unread(10), at(20, running=1), at(379, running=1)], Continue, id="a first read that is late, in time"
        ),
        pytest.param(
            [unread(10), at(20, running=1), at(380, running=1)], StalledError, id="a first read that is late, too long"
        ),
        pytest.param(
            [unread(s, 200) for s in range(5, 300, 5)], Continue, id="nothing was ever read, and no canary is due"
        ),
        pytest.param(waiting(30, idle=True), Continue, id="no rank does anything, in time"),
        pytest.param([unread(s) for s in range(1, 61)], Continue, id="an engine without requests is idle, too"),
        pytest.param(waiting(300), Continue, id="a prefill of minutes"),
        pytest.param(waiting(300, idle=True, compiles=True), Continue, id="compilers that are held use no CPU"),
        pytest.param([at(355, None, health=None), at(359, None, health=None)], Continue, id="no answer, in time"),
        pytest.param([at(355, None, health=None), at(360, None, health=None)], StalledError, id="no answer, too long"),
        pytest.param([at(4000, None, health=None)], Continue, id="one slow answer after a standstill of the agent"),
        pytest.param([at(300), at(310, canary=FAILED), at(661)], StalledError, id="idle, canaries fail for too long"),
        pytest.param(
            [at(300, None), at(420, None, canary=FAILED), at(661, None)], StalledError, id="no counters, canaries fail"
        ),
    ],
)
def test_an_engine_continues_is_dead_or_stalled(
    observations: list[Observation], kind: type[Continue | Failure]
) -> None:
    assert isinstance(observe(*observations), kind)


def test_an_engine_that_gives_no_token_while_no_rank_does_anything_is_ended_after_half_a_minute() -> None:
    ended = observe(*waiting(31, idle=True))
    assert isinstance(ended, StalledError)
    assert ended.reason == (
        "requests run and no token came for 30 s, and for 30 s no rank used a CPU or a GPU: it hangs"
    )


@pytest.mark.parametrize(
    ("observations", "degraded", "wants_canary"),
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
    observations: list[Observation], degraded: str, wants_canary: bool
) -> None:
    decision = observe(*observations)
    assert isinstance(decision, Continue)
    assert decision.degraded == degraded
    assert decision.wants_canary is wants_canary


@pytest.mark.parametrize("running", [0, 1])
def test_without_canaries_an_engine_whose_counters_are_unreadable_is_not_taken_for_a_sound_one(running: int) -> None:
    limits = Supervise(stall_seconds=360, canary_seconds=0)
    unreadable = [unread(seconds, 200) for seconds in range(15, 3600, 5)]
    decision = observe(at(10, running=running), *unreadable, limits=limits)
    assert isinstance(decision, Continue), "nothing proves that it hangs"
    assert decision.degraded.startswith("/metrics could not be read for 3585 s, and canaries are off: ")
    assert "supervise.canary_seconds" in decision.degraded
    early = observe(at(10, running=running), *unreadable[:5], limits=limits)
    assert isinstance(early, Continue)
    assert not early.degraded
    without_statistics = observe(*unreadable, limits=limits)
    assert isinstance(without_statistics, Continue)
    assert not without_statistics.degraded


@pytest.mark.parametrize("health", [200, None])
def test_rest_that_came_after_the_last_read_is_no_hang(health: int | None) -> None:
    """A step of 35 s, then /metrics can't be read, the request ends, and the engine has nothing to do."""
    prefill = [replace(at(seconds, running=1), computes=True) for seconds in range(2, 42, 2)]
    rest = [unread(seconds, health) for seconds in range(42, 120, 2)]
    limits = Supervise(stall_seconds=360, canary_seconds=0)
    assert isinstance(observe(at(1), *prefill, *rest, limits=limits), Continue)
