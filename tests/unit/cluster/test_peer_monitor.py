"""When another rank is lost, and how long silence is tolerated: while tokens come, where the engine serves, else until
the timeout.

Nothing waits here: how long a node has been silent follows from when it was last heard.
"""

from __future__ import annotations

import math
import time
from collections.abc import Coroutine
from concurrent.futures import Future
from typing import Any

import pytest
from msgspec.structs import replace
from tests.unit.cluster.silent_peers import SilentPeer
from tests.unit.nodes import report, status

from sparkd.agent.cluster.monitor import ExpectedPeer, PeerMonitor, expect_peer, peer_lost_error
from sparkd.base.lib.errors import Cause, ExitCode, PeerLostError
from sparkd.base.status.model import Contact, PeerStatus, Phase
from sparkd.base.status.phases import PHASES

TIMEOUT_SECONDS = 1000.0
LATE, OVER = 800.0, 1001.0
"""In the last quarter of the timeout, and past it."""
RETURN_SECONDS = 15.0


class Watch:
    """A monitor of ranks that are as silent as a test says, and of an engine that makes tokens when the test says."""

    def __init__(
        self,
        *ranks: int,
        proves: bool = True,
        limit_seconds: float = math.inf,
        timeout_seconds: float = TIMEOUT_SECONDS,
        return_seconds: float = 0.0,
    ) -> None:
        self.peers = {rank: SilentPeer(rank) for rank in ranks}
        for peer in self.peers.values():
            peer.silent_for(0)
        self.requests: list[Future[bool]] = []
        self.given_seconds: list[float] = []
        """Time for each proof."""
        self.ahead_seconds = 0.0
        """Seconds that pass at once."""
        self.resumed_at = float("-inf")
        self.monitor = PeerMonitor(
            self.peers,
            self._submit,
            timeout_seconds,
            return_seconds,
            resumed_at=lambda: self.resumed_at,
            clock=self.clock,
        )
        if proves:
            self.monitor.prove_by(self._prove, limit_seconds)
        self.monitor.track(*(expect_peer(status, "e") for status in self.monitor.statuses()))

    def clock(self) -> float:
        return time.monotonic() + self.ahead_seconds

    def _prove(self, seconds: float) -> Coroutine[Any, Any, bool]:
        self.given_seconds.append(seconds)

        async def token() -> bool:
            return True

        return token()

    def _submit(self, work: Coroutine[Any, Any, bool]) -> Future[bool]:
        work.close()
        self.requests.append(Future())
        return self.requests[-1]

    def engine_makes(self, token: bool) -> None:
        self.requests[-1].set_result(token)

    def silent(self, rank: int, seconds: float) -> None:
        """Check after that rank's silence. 0: it was heard just now."""
        self.peers[rank].silent_for(seconds)
        self.monitor.check()

    def refuse(self, rank: int, seconds: float, **changes: object) -> None:
        """Let that rank, which serves, refuse connections, so many seconds after its last answer."""
        answer = replace(report(rank, phase=Phase.SERVING, epoch="e"), **changes)
        self.peers[rank].status = status(Contact.REFUSED, answer)
        self.peers[rank].silent_for(seconds)

    @property
    def trouble(self) -> str:
        return self.monitor.trouble


def test_without_a_proof_silence_is_tolerated_until_the_timeout() -> None:
    watch = Watch(0, proves=False)
    watch.silent(0, TIMEOUT_SECONDS - 1)
    assert watch.trouble == ""
    with pytest.raises(PeerLostError, match=r"rank 0 on spark1 \(10\.0\.0\.1\) has been silent for 1001 s") as caught:
        watch.silent(0, OVER)
    assert caught.value.code is ExitCode.PEER_LOST
    assert caught.value.hint == "sparkd starts again and awaits it"


def lose_own_address(watch: Watch) -> PeerLostError:
    """The loss at the next check, long after this node's own address went."""
    peer = watch.peers[0]
    peer.status = replace(peer.status, said="this node's own address 10.0.0.2 is gone", own_address_gone=True)
    with pytest.raises(PeerLostError) as caught:
        watch.silent(0, OVER)
    return caught.value


def test_a_node_that_has_lost_its_own_address_blames_that_and_no_other_node() -> None:
    lost = lose_own_address(Watch(0, proves=False))
    reason = "this node's own address 10.0.0.2 is gone: rank 0 on spark1 (10.0.0.1) has been silent for 1001 s"
    assert lost.reason == reason
    assert lost.cause is Cause.OWN_ADDRESS_GONE
    assert lost.hint.startswith("ip -brief address;")


def test_a_failed_proof_keeps_the_cause_and_the_hint_of_the_silence() -> None:
    watch = Watch(0)
    watch.silent(0, LATE)
    watch.engine_makes(False)
    lost = lose_own_address(watch)
    assert lost.reason.endswith("has been silent for 1001 s, and the engine does not answer")
    assert lost.cause is Cause.OWN_ADDRESS_GONE
    assert lost.hint.startswith("ip -brief address;")


@pytest.mark.parametrize("proves", [True, False])
def test_a_silence_that_ends_in_time_has_no_effect(proves: bool) -> None:
    watch = Watch(0, proves=proves)
    for _ in range(2):
        watch.silent(0, 700)
        watch.silent(0, 0)
    assert watch.trouble == ""
    assert watch.requests == []


def test_the_engine_gets_one_request_in_the_last_part_of_the_timeout() -> None:
    watch = Watch(1)
    watch.silent(1, 749)
    assert watch.requests == []
    for seconds in (751, 800, 900):
        watch.silent(1, seconds)
    assert len(watch.requests) == 1
    assert watch.given_seconds == pytest.approx([249], abs=0.5)


def test_with_tokens_any_silence_is_tolerated_and_reported() -> None:
    watch = Watch(1)
    watch.silent(1, LATE)
    watch.engine_makes(True)
    for seconds in (OVER, 100 * OVER):
        watch.silent(1, seconds)
        text = f"rank 1 on spark2 (10.0.0.2) has been silent for {seconds:.0f} s; the engine answers"
        assert watch.trouble == text
    watch.silent(1, 0)
    assert watch.trouble == ""


def test_a_proof_expires_and_the_next_one_may_fail() -> None:
    watch = Watch(1, timeout_seconds=0.08)  # a token proves for a quarter of it
    watch.silent(1, 10)
    watch.engine_makes(True)
    watch.monitor.check()
    assert len(watch.requests) == 1
    watch.ahead_seconds = 0.03
    watch.monitor.check()
    assert len(watch.requests) == 2
    watch.engine_makes(False)
    with pytest.raises(PeerLostError, match="and the engine does not answer"):
        watch.monitor.check()


@pytest.mark.parametrize("limit_seconds", [math.inf, 2 * TIMEOUT_SECONDS])
def test_no_token_ends_the_run_at_the_timeout_and_not_before(limit_seconds: float) -> None:
    watch = Watch(0, limit_seconds=limit_seconds)
    watch.silent(0, LATE)
    watch.engine_makes(False)
    watch.monitor.check()
    with pytest.raises(PeerLostError, match="has been silent for 1001 s, and the engine does not answer"):
        watch.silent(0, OVER)


def proven_with_an_end() -> Watch:
    """A head whose agent hangs while its engine answers; that is accepted for twice the timeout, and almost over."""
    watch = Watch(0, return_seconds=30, limit_seconds=2 * TIMEOUT_SECONDS)
    watch.silent(0, LATE)
    watch.engine_makes(True)
    watch.silent(0, 2 * TIMEOUT_SECONDS - 1)
    return watch


def test_a_proof_with_an_end_holds_a_silence_until_then() -> None:
    watch = proven_with_an_end()
    assert watch.trouble == "rank 0 on spark1 (10.0.0.1) has been silent for 1999 s; the engine answers"
    with pytest.raises(PeerLostError, match=r"has been silent for 2001 s \("):
        watch.silent(0, 2 * TIMEOUT_SECONDS + 1)


def test_an_agent_that_its_watchdog_ends_during_a_proof_is_awaited() -> None:
    watch = proven_with_an_end()
    watch.peers[0].status = replace(watch.peers[0].status, contact=Contact.REFUSED)
    watch.monitor.check()
    assert watch.trouble.endswith("its rank serves: the next one is awaited for 30 s")


def test_a_timeout_beyond_the_end_of_a_proof_stays_as_it_is() -> None:
    watch = Watch(0, limit_seconds=40.0)
    watch.silent(0, TIMEOUT_SECONDS - 1)
    assert watch.requests == []
    with pytest.raises(PeerLostError, match=r"has been silent for 1001 s \("):
        watch.silent(0, OVER)


def test_after_the_timeout_a_pending_proof_is_awaited() -> None:
    watch = Watch(1)
    for _ in range(3):
        watch.silent(1, OVER)
    assert len(watch.requests) == 1
    assert watch.trouble == "", "no token has come yet"
    watch.engine_makes(False)
    with pytest.raises(PeerLostError):
        watch.monitor.check()


def prove_in_next_silence(watch: Watch) -> None:
    watch.silent(1, LATE)
    assert len(watch.requests) == 2
    watch.silent(1, OVER)
    watch.engine_makes(True)
    watch.monitor.check()
    assert watch.trouble.endswith("the engine answers")


def test_a_failed_proof_does_not_count_for_the_next_silence() -> None:
    watch = Watch(1)
    watch.silent(1, LATE)
    watch.engine_makes(False)
    watch.monitor.check()
    watch.silent(1, 0)
    prove_in_next_silence(watch)


def test_a_proof_that_fails_after_its_silence_does_not_count_for_the_next_one() -> None:
    watch = Watch(1)
    watch.silent(1, LATE)
    watch.silent(1, 0)
    watch.engine_makes(False)
    prove_in_next_silence(watch)


def test_the_longest_silence_counts() -> None:
    watch = Watch(1, 2, 3, proves=False)
    watch.peers[2].silent_for(OVER)
    with pytest.raises(PeerLostError, match="rank 2 on spark3"):
        watch.silent(3, LATE)


def test_a_loss_goes_before_a_silence() -> None:
    watch = Watch(1, 2, proves=False)
    watch.refuse(2, 0)
    with pytest.raises(PeerLostError, match=r"rank 2 on spark3 .* refuses connections"):
        watch.silent(1, OVER)


def test_tokens_do_not_excuse_a_loss() -> None:
    watch = Watch(1)
    watch.silent(1, LATE)
    watch.engine_makes(True)
    watch.peers[1].status = status(answer=report(phase=Phase.FAILED, message="boom", epoch="e"))
    with pytest.raises(PeerLostError, match="failed: boom"):
        watch.monitor.check()


def test_an_untracked_peer_is_reported_and_never_lost() -> None:
    watch, shown = Watch(0, 2), list[tuple[PeerStatus, ...]]()
    watch.monitor.on_check = shown.append
    watch.monitor.untrack_all()
    watch.peers[0].status = status(Contact.REFUSED, report(0, phase=Phase.FAILED))
    watch.silent(2, 100 * OVER)
    assert shown == [tuple(peer.status for peer in watch.peers.values())]
    watch.monitor.track(expect_peer(watch.peers[0].status, "e"))
    with pytest.raises(PeerLostError):
        watch.monitor.check()


def test_a_single_node_has_no_peers() -> None:
    assert Watch().monitor.check() == ()


EXPECTED = ExpectedPeer(1, "incarnation-1", "e1")
RUNNING = report(phase=Phase.SERVING, epoch="e1")


@pytest.mark.parametrize(
    ("changes", "reason", "cause"),
    [
        ({"incarnation": "another"}, "has restarted", Cause.PEER_LOST),
        ({"rank_id": "another"}, "has restarted", Cause.PEER_LOST),
        (
            {"incarnation": "another", "last_cause": "RuntimeError: boom (exit 13)"},
            "has restarted; it ended before with: RuntimeError: boom (exit 13)",
            Cause.PEER_FAILED,
        ),
        (
            {"incarnation": "another", "last_cause": "killed", "last_cause_code": "agent-killed"},
            "has restarted; it ended before with: killed",
            Cause.PEER_LOST,
        ),
        ({"phase": Phase.BLOCKED, "message": "no"}, "is blocked: no", Cause.PEER_FAILED),
        ({"phase": Phase.FAILED, "message": "boom"}, "failed: boom", Cause.PEER_FAILED),
        ({"phase": Phase.STOPPING, "message": "bye"}, "leaves: bye", Cause.PEER_STOPPED),
        ({"phase": Phase.STOPPED, "message": "bye"}, "has left: bye", Cause.PEER_STOPPED),
        ({"epoch": "e2"}, "belongs to another launch", Cause.PEER_LOST),
    ],
)
def test_an_end_or_a_restart_is_a_loss_at_once_and_has_its_cause(
    changes: dict[str, object], reason: str, cause: Cause
) -> None:
    loss = peer_lost_error(EXPECTED, status(answer=replace(RUNNING, **changes)))
    assert loss is not None
    assert loss.reason == f"rank 1 on spark2 (10.0.0.2) {reason}"
    assert loss.cause is cause


@pytest.mark.parametrize("contact", [Contact.REFUSED, Contact.SILENT])
def test_the_last_words_of_an_agent_say_more_than_the_refusal_or_the_silence_after_them(contact: Contact) -> None:
    loss = peer_lost_error(EXPECTED, status(contact, replace(RUNNING, phase=Phase.FAILED, message="boom")))
    assert loss is not None
    assert loss.reason == "rank 1 on spark2 (10.0.0.2) failed: boom"


@pytest.mark.parametrize("phase", [phase for phase in Phase if PHASES[phase].loss is None])
@pytest.mark.parametrize("epoch", ["", "e1"])
def test_an_agent_that_continues_is_no_loss_whatever_it_does(phase: Phase, epoch: str) -> None:
    assert peer_lost_error(EXPECTED, status(answer=report(phase=phase, epoch=epoch))) is None


def test_a_head_that_has_taken_its_call_back_is_lost_also_where_its_blocked_phase_was_not_read() -> None:
    """A link may have been down for those seconds: the head would wait for this worker, this one's rank for it."""
    expected = ExpectedPeer(0, "incarnation-0", "e1")
    waiting = report(0, phase=Phase.AWAITING_PEERS, epoch="", incarnation="incarnation-0")
    assert peer_lost_error(expected, status(answer=replace(waiting, epoch="e1"))) is None
    loss = peer_lost_error(expected, status(answer=waiting))
    assert loss is not None
    assert loss.reason == "rank 0 on spark1 (10.0.0.1) belongs to another launch"


@pytest.mark.parametrize("contact", [Contact.ANSWERS, Contact.SILENT, Contact.UNSIGNED])
def test_silence_is_never_a_loss_by_itself(contact: Contact) -> None:
    assert peer_lost_error(EXPECTED, status(contact, RUNNING)) is None


def test_the_loss_of_a_silent_node_says_why_it_does_not_answer() -> None:
    watch = Watch(1, proves=False)
    watch.peers[1].status = replace(watch.peers[1].status, contact=Contact.SILENT, said="no answer within 8 s")
    with pytest.raises(PeerLostError, match=r"rank 1 .* has been silent for 1001 s: no answer within 8 s"):
        watch.silent(1, OVER)


def test_the_reported_rank_is_expected_and_the_incarnation_of_an_earlier_version() -> None:
    assert expect_peer(status(answer=report(3, incarnation="i", rank_id="r")), "e") == ExpectedPeer(3, "r", "e")
    assert expect_peer(status(answer=report(3, incarnation="i")), "e") == ExpectedPeer(3, "i", "e")


def test_the_rank_counts_whatever_process_has_it() -> None:
    expected = ExpectedPeer(1, "r", "e1")
    assert peer_lost_error(expected, status(answer=replace(RUNNING, rank_id="r", incarnation="another"))) is None
    placeless = status(answer=replace(RUNNING, rank=-1, epoch="", phase=Phase.AWAITING_PEERS, incarnation="another"))
    assert peer_lost_error(expected, replace(placeless, rank=1)) is not None


def test_a_standstill_of_this_process_is_no_silence_of_the_others() -> None:
    watch = Watch(0, proves=False)
    watch.resumed_at = time.monotonic() - 0.1
    watch.silent(0, OVER)
    watch.resumed_at = float("-inf")
    with pytest.raises(PeerLostError, match="has been silent"):
        watch.monitor.check()


def awaiting(*ranks: int) -> Watch:
    """A monitor that awaits the next agents of these ranks."""
    return Watch(*ranks, proves=False, return_seconds=RETURN_SECONDS)


def test_an_agent_that_is_away_while_its_rank_serves_is_awaited_until_it_is_back() -> None:
    watch = awaiting(1)
    watch.refuse(1, 14)
    watch.monitor.check()
    assert watch.trouble.startswith("the agent of rank 1 on spark2 (10.0.0.2) is away, and its rank serves")
    watch.peers[1].status = replace(watch.peers[1].status, contact=Contact.ANSWERS)
    watch.silent(1, 0)
    assert watch.trouble == ""


def test_an_agent_that_does_not_come_back_in_its_time_is_lost() -> None:
    watch = awaiting(1)
    watch.refuse(1, 20)
    watch.monitor.check()
    watch.ahead_seconds = RETURN_SECONDS + 1
    with pytest.raises(PeerLostError, match=r"refuses connections, its agent ended .*, and none came for 15 s"):
        watch.monitor.check()


def test_a_machine_that_was_silent_before_it_refuses_has_restarted() -> None:
    watch = awaiting(1)
    watch.refuse(1, 26)
    with pytest.raises(PeerLostError, match="refuses connections"):
        watch.monitor.check()


def test_an_agent_that_hung_until_its_watchdog_ended_it_is_awaited_where_tokens_came() -> None:
    watch = Watch(1, return_seconds=RETURN_SECONDS)
    watch.silent(1, LATE)
    watch.engine_makes(True)
    watch.refuse(1, LATE)
    watch.monitor.check()
    assert "is away, and its rank serves" in watch.trouble
    watch.ahead_seconds = RETURN_SECONDS + 1
    with pytest.raises(PeerLostError, match="none came for 15 s"):
        watch.monitor.check()


def refusing_without_a_proof(others: tuple[int, ...], *, token: bool) -> Watch:
    """The watchdog's time is shorter than the timeout here. The engine makes its first token now, or fails to."""
    watch = Watch(1, *others, return_seconds=RETURN_SECONDS)
    watch.refuse(1, 33)
    watch.monitor.check()
    assert "is away, and its rank serves" in watch.trouble
    watch.engine_makes(token)
    return watch


other_nodes_answer = pytest.mark.parametrize("others", [(), (2,)])


@other_nodes_answer
def test_an_agent_that_refuses_after_a_silence_without_a_proof_is_lost_where_the_engine_does_not_work(
    others: tuple[int, ...],
) -> None:
    watch = refusing_without_a_proof(others, token=False)
    with pytest.raises(PeerLostError, match=r"33 s after its last answer, as where its machine has restarted"):
        watch.monitor.check()


@other_nodes_answer
def test_an_agent_that_refuses_after_a_silence_without_a_proof_is_awaited_where_the_engine_works(
    others: tuple[int, ...],
) -> None:
    watch = refusing_without_a_proof(others, token=True)
    watch.ahead_seconds = RETURN_SECONDS - 1
    for _ in range(2):
        watch.monitor.check()
    assert len(watch.requests) == 1
    watch.ahead_seconds = RETURN_SECONDS + 1
    with pytest.raises(PeerLostError, match="none came for 15 s"):
        watch.monitor.check()


def test_a_standstill_of_this_process_is_no_absence_of_another_agent() -> None:
    """It may be back, and this process could not see that yet."""
    watch = Watch(1, return_seconds=RETURN_SECONDS)
    watch.refuse(1, 1)
    watch.monitor.check()
    watch.ahead_seconds = RETURN_SECONDS + 2
    watch.resumed_at = watch.clock()
    watch.monitor.check()
    watch.ahead_seconds += RETURN_SECONDS + 1
    with pytest.raises(PeerLostError, match="none came for 15 s"):
        watch.monitor.check()


@pytest.mark.parametrize("phase", [phase for phase in Phase if phase not in (Phase.SERVING, Phase.DEGRADED)])
def test_an_agent_whose_rank_does_not_serve_is_not_awaited(phase: Phase) -> None:
    watch = awaiting(1)
    watch.refuse(1, 0, phase=phase)
    with pytest.raises(PeerLostError):
        watch.monitor.check()


def test_a_second_agent_that_is_not_awaited_is_lost_at_once_while_another_one_is_away() -> None:
    watch = awaiting(1, 2)
    watch.refuse(1, 0)
    watch.monitor.check()
    assert "the agent of rank 1 on spark2" in watch.trouble
    watch.refuse(2, 0, phase=Phase.LOADING)
    with pytest.raises(PeerLostError, match=r"rank 2 on spark3 \(10\.0\.0\.3\) is gone"):
        watch.monitor.check()


def test_of_two_agents_that_are_away_the_first_is_reported() -> None:
    watch = awaiting(1, 2)
    for rank in (1, 2):
        watch.refuse(rank, 0)
    watch.monitor.check()
    assert watch.trouble.startswith("the agent of rank 1 on spark2 (10.0.0.2) is away")


def test_an_agent_that_is_back_is_no_trouble_any_more_while_another_node_is_silent() -> None:
    watch = awaiting(1, 2)
    watch.refuse(1, 0)
    watch.monitor.check()
    assert watch.trouble
    watch.ahead_seconds = 0.9 * TIMEOUT_SECONDS
    watch.peers[1].status = replace(watch.peers[1].status, contact=Contact.ANSWERS)
    watch.peers[1].heard_at = watch.clock()
    watch.monitor.check()
    assert watch.trouble == ""


def test_no_agent_is_awaited_where_that_is_set_to_0() -> None:
    watch = Watch(1, return_seconds=0)
    watch.refuse(1, 0)
    with pytest.raises(PeerLostError, match=r"its agent ended without a report \("):
        watch.monitor.check()


@pytest.mark.parametrize(("contact", "seconds"), [(Contact.UNHEARD, OVER), (Contact.REFUSED, 26)])
def test_another_node_that_was_not_heard_yet_has_time_from_the_taking_over_on(contact: Contact, seconds: float) -> None:
    watch = awaiting(1)
    watch.peers[1].status = replace(status(contact), report=None)
    watch.peers[1].heard_at = None
    watch.monitor.check()
    watch.ahead_seconds = seconds
    with pytest.raises(PeerLostError):
        watch.monitor.check()
