from __future__ import annotations

import pytest

from sparkd.engine.health import Continue, Dead, Decision, HealthState, Limits, Observation, Stalled, decide
from sparkd.vllm.api import Completion, Counters

LIMITS = Limits(stall_seconds=360, canary_seconds=300, completion_seconds=120)
START = HealthState(answered_at=0, moved_at=0, proven_at=0)
TOKEN, FAILED = Completion(token=True), Completion(token=False, said="HTTP 500")


def look(*seen: Observation, limits: Limits = LIMITS) -> Decision:
    decision: Decision = Continue(START)
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
        pytest.param([at(1, health=503)], Dead, id="503 is death at once"),
        pytest.param([at(10, running=1), at(369, running=1)], Continue, id="requests without a token, in time"),
        pytest.param([at(10, running=1), at(370, running=1)], Stalled, id="requests without a token, too long"),
        pytest.param([at(10, waiting=3), at(400, waiting=3)], Stalled, id="requests that never run"),
        pytest.param(
            [at(10, running=1), Observation(300, 200, PREFILL), Observation(600, 200, PREFILL)],
            Continue,
            id="any counter that moves is progress",
        ),
        pytest.param([at(359, None, health=None)], Continue, id="no answer, in time"),
        pytest.param([at(360, None, health=None)], Stalled, id="no answer, too long"),
        pytest.param([at(300), at(310, canary=FAILED), at(661)], Stalled, id="idle, and canaries fail for too long"),
        pytest.param(
            [at(300, None), at(420, None, canary=FAILED), at(661, None)], Stalled, id="no statistics, canaries fail"
        ),
    ],
)
def test_an_engine_continues_is_dead_or_stalled(seen: list[Observation], kind: type[Decision]) -> None:
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
    decision = look(at(5000), limits=Limits(stall_seconds=360, canary_seconds=0, completion_seconds=120))
    assert isinstance(decision, Continue)
    assert not decision.wants_canary
