from __future__ import annotations

import pytest

from sparkd.host.endpoint import Completion, Counters
from sparkd.supervise import Dead, Decision, GoOn, Limits, Observation, Stalled, Watch, decide

LIMITS = Limits(stall_seconds=360, canary_seconds=300)
START = Watch(answered_at=0, moved_at=0, proven_at=0)


def counters(tokens: float, *, running: float = 0, waiting: float = 0) -> Counters:
    return Counters(running, waiting, prompt_tokens=tokens, generation_tokens=tokens, iterations=tokens)


def look(*seen: Observation) -> Decision:
    decision: Decision = GoOn(START)
    for observation in seen:
        assert isinstance(decision, GoOn), f"ended before {observation}"
        decision = decide(decision.watch, observation, LIMITS)
    return decision


def test_503_is_death_at_once() -> None:
    assert isinstance(look(Observation(1, 503, counters(5))), Dead)


def test_running_requests_without_a_token_are_a_stall_after_the_limit_and_no_sooner() -> None:
    first = Observation(10, 200, counters(5, running=1))
    assert isinstance(look(first, Observation(369, 200, counters(5, running=1))), GoOn)
    assert isinstance(look(first, Observation(370, 200, counters(5, running=1))), Stalled)


def test_waiting_requests_that_never_run_are_a_stall_too() -> None:
    seen = [Observation(at, 200, counters(5, waiting=3)) for at in (10, 400)]
    assert isinstance(look(*seen), Stalled)


def test_any_moving_counter_is_life() -> None:
    prefill = Counters(1, 0, prompt_tokens=5, generation_tokens=5, iterations=6)
    decision = look(
        Observation(10, 200, counters(5, running=1)), Observation(300, 200, prefill), Observation(600, 200, prefill)
    )
    assert isinstance(decision, GoOn)


def test_an_idle_engine_is_never_stalled_but_is_asked_for_a_token() -> None:
    decision = look(*(Observation(at, 200, counters(5)) for at in range(0, 2000, 5)))
    assert isinstance(decision, GoOn)
    assert decision.wants_canary


def test_tokens_of_others_make_a_canary_needless() -> None:
    decision = look(*(Observation(at, 200, counters(at, running=1)) for at in range(0, 2000, 5)))
    assert isinstance(decision, GoOn)
    assert not decision.wants_canary


def test_a_canary_that_came_back_is_proof() -> None:
    seen = [Observation(at, 200, counters(5)) for at in (0, 310)]
    decision = look(*seen, Observation(315, 200, counters(6), canary=Completion(token=True)))
    assert isinstance(decision, GoOn)
    assert not decision.wants_canary


def test_failing_canaries_degrade_and_then_end_an_idle_engine() -> None:
    failed = Completion(token=False, said="HTTP 500")
    decision = look(Observation(300, 200, counters(5)), Observation(310, 200, counters(5), canary=failed))
    assert isinstance(decision, GoOn)
    assert "HTTP 500" in decision.degraded
    assert decision.wants_canary, "one failure may be a chance: ask again"
    assert isinstance(decide(decision.watch, Observation(661, 200, counters(5)), LIMITS), Stalled)


def test_tokens_after_a_failed_canary_clear_it() -> None:
    failed = Completion(token=False, said="HTTP 500")
    decision = look(
        Observation(300, 200, counters(5)),
        Observation(310, 200, counters(5), canary=failed),
        Observation(320, 200, counters(9, running=1)),
    )
    assert isinstance(decision, GoOn)
    assert decision.degraded == ""


@pytest.mark.parametrize(("at", "ended"), [(359, False), (360, True)])
def test_an_api_server_that_does_not_answer_is_a_stall_after_the_limit(at: float, *, ended: bool) -> None:
    assert isinstance(look(Observation(at, None)), Stalled) is ended


def test_silence_is_told_long_before_it_ends_the_engine() -> None:
    decision = look(Observation(40, None))
    assert isinstance(decision, GoOn)
    assert "has not answered for 40 s" in decision.degraded


def test_an_engine_without_statistics_is_judged_by_canaries_alone() -> None:
    quiet = look(*(Observation(at, 200, None) for at in range(0, 2000, 5)))
    assert isinstance(quiet, GoOn)
    assert quiet.wants_canary
    failed = Completion(token=False, said="no answer within 120 s")
    watch = look(Observation(300, 200, None), Observation(420, 200, None, canary=failed))
    assert isinstance(watch, GoOn)
    assert isinstance(decide(watch.watch, Observation(661, 200, None), LIMITS), Stalled)


def test_canaries_can_be_switched_off() -> None:
    decision = decide(START, Observation(5000, 200, counters(5)), Limits(stall_seconds=360, canary_seconds=0))
    assert isinstance(decision, GoOn)
    assert not decision.wants_canary
