"""When another rank is lost, and how long silence is tolerated: while tokens come, where the engine serves,
else until the timeout.

Nothing waits here: how long a node has been silent follows from when it was last heard.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Coroutine
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


Peers = dict[int, SilentPeer]


def heard_peers(*ranks: int) -> Peers:
    peers = {rank: SilentPeer(rank) for rank in ranks}
    for peer in peers.values():
        peer.silent_for(0)
    return peers


class Engine:
    """Gets requests for tokens, and answers when the test wants."""

    def __init__(self) -> None:
        self.requests: list[Future[bool]] = []

    def submit(self, work: Coroutine[Any, Any, bool]) -> Future[bool]:
        work.close()
        self.requests.append(Future())
        return self.requests[-1]

    def makes(self, token: bool) -> None:
        self.requests[-1].set_result(token)


async def token() -> bool:
    return True


class Clock:
    """Seconds may pass at once."""

    ahead_seconds = 0.0

    def __call__(self) -> float:
        return time.monotonic() + self.ahead_seconds


def tracked(
    *ranks: int,
    proves: bool = True,
    timeout_seconds: float = TIMEOUT_SECONDS,
    return_seconds: float = 0.0,
    clock: Callable[[], float] = time.monotonic,
) -> tuple[Peers, Engine, PeerMonitor]:
    peers, engine = heard_peers(*ranks), Engine()
    monitor = PeerMonitor(peers, engine.submit, timeout_seconds, return_seconds, clock=clock)
    if proves:
        monitor.prove_by(lambda _seconds: token())
    monitor.track(*(expect_peer(status, "e") for status in monitor.statuses()))
    return peers, engine, monitor


def test_without_a_proof_silence_is_tolerated_until_the_timeout() -> None:
    peers, engine, monitor = tracked(0, proves=False)
    peers[0].silent_for(TIMEOUT_SECONDS - 1)
    monitor.check()
    assert monitor.trouble == ""
    assert engine.requests == []
    peers[0].silent_for(OVER)
    with pytest.raises(PeerLostError, match=r"rank 0 on spark1 \(10\.0\.0\.1\) has been silent for 1001 s") as caught:
        monitor.check()
    assert caught.value.code is ExitCode.PEER_LOST
    assert caught.value.hint == "sparkd starts again and awaits it"


@pytest.mark.parametrize("proves", [True, False])
def test_a_node_that_has_lost_its_own_address_blames_that_and_no_other_node(proves: bool) -> None:
    peers, engine, monitor = tracked(0, proves=proves)
    gone = "this node's own address 10.0.0.2 is gone"
    peers[0].status = replace(peers[0].status, said=gone, own_address_gone=True)
    peers[0].silent_for(OVER)
    if proves:
        monitor.check()
        engine.makes(False)
    with pytest.raises(PeerLostError) as caught:
        monitor.check()
    lost = caught.value
    assert lost.reason.startswith(f"{gone}: rank 0 on spark1 (10.0.0.1) has been silent for 1001 s")
    assert lost.cause is Cause.OWN_ADDRESS_GONE
    assert lost.hint.startswith("ip -brief address;")


def test_a_silence_that_ends_in_time_has_no_effect() -> None:
    for proves in (True, False):
        peers, _, monitor = tracked(0, proves=proves)
        for _ in range(100):
            peers[0].silent_for(700)
            monitor.check()
            peers[0].silent_for(0)
            monitor.check()
        assert monitor.trouble == ""


def test_the_engine_gets_one_request_in_the_last_part_of_the_timeout() -> None:
    peers, engine, monitor = tracked(1)
    given: list[float] = []

    def prove(seconds: float) -> Coroutine[Any, Any, bool]:
        given.append(seconds)
        return token()

    monitor.prove_by(prove)
    peers[1].silent_for(749)
    monitor.check()
    assert engine.requests == []
    for seconds in (751, 800, 900):
        peers[1].silent_for(seconds)
        monitor.check()
    assert len(engine.requests) == 1
    assert given == pytest.approx([249], abs=0.5)


def test_with_tokens_any_silence_is_tolerated_and_reported() -> None:
    peers, engine, monitor = tracked(1)
    peers[1].silent_for(LATE)
    monitor.check()
    engine.makes(True)
    for seconds in (OVER, 100 * OVER):
        peers[1].silent_for(seconds)
        monitor.check()
        assert monitor.trouble.startswith(f"rank 1 on spark2 (10.0.0.2) has been silent for {seconds:.0f} s")
        assert monitor.trouble.endswith("; the engine answers")
    peers[1].silent_for(0)
    monitor.check()
    assert monitor.trouble == ""


def test_a_proof_expires_and_the_next_one_may_fail() -> None:
    peers, engine, monitor = tracked(1, timeout_seconds=0.08)  # a token proves for a quarter of it
    peers[1].silent_for(10)
    monitor.check()
    engine.makes(True)
    monitor.check()
    assert len(engine.requests) == 1
    time.sleep(0.03)
    monitor.check()
    assert len(engine.requests) == 2
    monitor.check()
    engine.makes(False)
    with pytest.raises(PeerLostError, match="and the engine does not answer"):
        monitor.check()


@pytest.mark.parametrize("proof_ends", [False, True])
def test_no_token_ends_the_run_at_the_timeout_and_not_before(proof_ends: bool) -> None:
    peers, engine, monitor = tracked(0)
    if proof_ends:
        monitor.prove_by(lambda _seconds: token(), 2 * TIMEOUT_SECONDS)
    peers[0].silent_for(LATE)
    monitor.check()
    engine.makes(False)
    monitor.check()
    peers[0].silent_for(OVER)
    with pytest.raises(PeerLostError, match="has been silent for 1001 s, and the engine does not answer"):
        monitor.check()


def proven_with_an_end() -> tuple[SilentPeer, PeerMonitor]:
    """A head whose agent hangs while its engine answers; that is accepted for twice the timeout, and almost over."""
    peers, engine, monitor = tracked(0, return_seconds=30)
    monitor.prove_by(lambda _seconds: token(), 2 * TIMEOUT_SECONDS)
    peers[0].silent_for(LATE)
    monitor.check()
    engine.makes(True)
    peers[0].silent_for(2 * TIMEOUT_SECONDS - 1)
    return peers[0], monitor


def test_a_proof_with_an_end_holds_a_silence_until_then() -> None:
    peer, monitor = proven_with_an_end()
    monitor.check()
    assert monitor.trouble == "rank 0 on spark1 (10.0.0.1) has been silent for 1999 s; the engine answers"
    peer.silent_for(2 * TIMEOUT_SECONDS + 1)
    with pytest.raises(PeerLostError, match=r"has been silent for 2001 s \("):
        monitor.check()


def test_an_agent_that_its_watchdog_ends_during_a_proof_is_awaited() -> None:
    peer, monitor = proven_with_an_end()
    monitor.check()
    peer.status = replace(peer.status, contact=Contact.REFUSED)
    monitor.check()
    assert monitor.trouble.endswith("its rank serves: the next one is awaited for 30 s")


def test_a_timeout_beyond_the_end_of_a_proof_stays_as_it_is() -> None:
    peers, engine, monitor = tracked(0)
    monitor.prove_by(lambda _seconds: token(), 40.0)
    peers[0].silent_for(TIMEOUT_SECONDS - 1)
    monitor.check()
    assert engine.requests == []
    peers[0].silent_for(OVER)
    with pytest.raises(PeerLostError, match=r"has been silent for 1001 s \("):
        monitor.check()


def test_after_the_timeout_a_pending_proof_is_awaited() -> None:
    peers, engine, monitor = tracked(1)
    peers[1].silent_for(OVER)
    for _ in range(3):
        monitor.check()
    assert len(engine.requests) == 1
    assert monitor.trouble == ""  # no token has come yet
    engine.makes(False)
    with pytest.raises(PeerLostError):
        monitor.check()


@pytest.mark.parametrize("answered_in_time", [True, False])
def test_a_failed_proof_does_not_count_for_the_next_silence(answered_in_time: bool) -> None:
    peers, engine, monitor = tracked(1)
    peers[1].silent_for(LATE)
    monitor.check()
    if answered_in_time:
        engine.makes(False)
        monitor.check()
    peers[1].silent_for(0)
    monitor.check()
    if not answered_in_time:
        engine.makes(False)
    peers[1].silent_for(LATE)
    monitor.check()
    assert len(engine.requests) == 2
    peers[1].silent_for(OVER)
    monitor.check()
    engine.makes(True)
    monitor.check()
    assert monitor.trouble.endswith("the engine answers")


def test_the_longest_silence_counts() -> None:
    peers, _, monitor = tracked(1, 2, 3, proves=False)
    peers[2].silent_for(OVER)
    peers[3].silent_for(LATE)
    with pytest.raises(PeerLostError, match="rank 2 on spark3"):
        monitor.check()


def test_a_loss_goes_before_a_silence() -> None:
    peers, _, monitor = tracked(1, 2, proves=False)
    peers[1].silent_for(OVER)
    peers[2].status = replace(peers[2].status, contact=Contact.REFUSED)
    with pytest.raises(PeerLostError, match=r"rank 2 on spark3 .* refuses connections"):
        monitor.check()


def test_tokens_do_not_excuse_a_loss() -> None:
    peers, engine, monitor = tracked(1)
    peers[1].silent_for(LATE)
    monitor.check()
    engine.makes(True)
    peers[1].status = status(answer=report(phase=Phase.FAILED, message="boom", epoch="e"))
    with pytest.raises(PeerLostError, match="failed: boom"):
        monitor.check()


def test_an_untracked_peer_is_reported_and_never_lost() -> None:
    peers = heard_peers(0, 2)
    peers[2].silent_for(100 * OVER)
    peers[0].status = status(Contact.REFUSED, report(0, phase=Phase.FAILED))
    shown: list[tuple[PeerStatus, ...]] = []
    monitor = PeerMonitor(peers, Engine().submit, TIMEOUT_SECONDS, on_check=shown.append)
    assert monitor.check() == tuple(peer.status for peer in peers.values())
    monitor.track(expect_peer(peers[0].status, "e"))
    with pytest.raises(PeerLostError):
        monitor.check()
    monitor.untrack_all()
    monitor.check()
    assert len(shown) == 3


def test_a_single_node_has_no_peers() -> None:
    assert PeerMonitor({}, Engine().submit, 1).check() == ()


EXPECTED = ExpectedPeer(1, "incarnation-1", "e1")
RUNNING = report(phase=Phase.SERVING, epoch="e1")


@pytest.mark.parametrize(
    ("contact", "changes", "reason", "cause"),
    [
        (Contact.ANSWERS, {"incarnation": "another"}, "rank 1 on spark2 (10.0.0.2) has restarted", Cause.PEER_LOST),
        (Contact.ANSWERS, {"rank_id": "another"}, "rank 1 on spark2 (10.0.0.2) has restarted", Cause.PEER_LOST),
        (
            Contact.ANSWERS,
            {"incarnation": "another", "last_cause": "RuntimeError: boom (exit 13)"},
            "rank 1 on spark2 (10.0.0.2) has restarted; it ended before with: RuntimeError: boom (exit 13)",
            Cause.PEER_FAILED,
        ),
        (
            Contact.ANSWERS,
            {"incarnation": "another", "last_cause": "killed", "last_cause_code": "agent-killed"},
            "rank 1 on spark2 (10.0.0.2) has restarted; it ended before with: killed",
            Cause.PEER_LOST,
        ),
        (
            Contact.ANSWERS,
            {"phase": Phase.BLOCKED, "message": "no"},
            "rank 1 on spark2 (10.0.0.2) is blocked: no",
            Cause.PEER_FAILED,
        ),
        (
            Contact.ANSWERS,
            {"phase": Phase.FAILED, "message": "boom"},
            "rank 1 on spark2 (10.0.0.2) failed: boom",
            Cause.PEER_FAILED,
        ),
        (
            Contact.ANSWERS,
            {"phase": Phase.STOPPING, "message": "bye"},
            "rank 1 on spark2 (10.0.0.2) leaves: bye",
            Cause.PEER_STOPPED,
        ),
        (
            Contact.ANSWERS,
            {"phase": Phase.STOPPED, "message": "bye"},
            "rank 1 on spark2 (10.0.0.2) has left: bye",
            Cause.PEER_STOPPED,
        ),
        (Contact.ANSWERS, {"epoch": "e2"}, "rank 1 on spark2 (10.0.0.2) belongs to another launch", Cause.PEER_LOST),
        # Its last words say more than the silence or the refusal after them.
        (
            Contact.REFUSED,
            {"phase": Phase.FAILED, "message": "boom"},
            "rank 1 on spark2 (10.0.0.2) failed: boom",
            Cause.PEER_FAILED,
        ),
        (
            Contact.SILENT,
            {"phase": Phase.FAILED, "message": "boom"},
            "rank 1 on spark2 (10.0.0.2) failed: boom",
            Cause.PEER_FAILED,
        ),
    ],
)
def test_an_end_or_a_restart_is_a_loss_at_once_and_has_its_cause(
    contact: Contact, changes: dict[str, object], reason: str, cause: Cause
) -> None:
    failed = status(contact, report(**{"phase": Phase.SERVING, "epoch": "e1", **changes}))
    loss = peer_lost_error(EXPECTED, failed)
    assert loss is not None
    assert loss.reason == reason
    assert loss.cause is cause


@pytest.mark.parametrize("phase", [phase for phase in Phase if PHASES[phase].loss is None])
@pytest.mark.parametrize("epoch", ["", "e1"])
def test_an_agent_that_continues_is_no_loss_whatever_it_does(phase: Phase, epoch: str) -> None:
    assert peer_lost_error(EXPECTED, status(answer=report(phase=phase, epoch=epoch))) is None


def test_a_head_that_has_taken_its_call_back_is_lost_also_where_its_blocked_phase_was_not_read() -> None:
    """As over a link that was down for those seconds: it would wait for this worker, and this worker's rank for it."""
    expected = ExpectedPeer(0, "incarnation-0", "e1")
    waiting = report(0, phase=Phase.AWAITING_PEERS, epoch="", incarnation="incarnation-0")
    assert peer_lost_error(expected, status(answer=replace(waiting, epoch="e1"))) is None
    loss = peer_lost_error(expected, status(answer=waiting))
    assert loss is not None
    assert loss.reason == "rank 0 on spark1 (10.0.0.1) belongs to another launch"


@pytest.mark.parametrize("contact", [Contact.ANSWERS, Contact.SILENT, Contact.UNSIGNED])
def test_silence_is_never_a_loss_by_itself(contact: Contact) -> None:
    silent = status(contact, RUNNING, why="no answer within 8 s")
    assert peer_lost_error(EXPECTED, silent) is None
    peers, _, monitor = tracked(1, proves=False)
    peers[1].status = replace(silent, report=replace(RUNNING, epoch="e"))
    peers[1].silent_for(3600)
    with pytest.raises(PeerLostError, match=r"rank 1 .* has been silent for 3600 s: no answer within 8 s"):
        monitor.check()


def test_the_reported_rank_is_expected_and_the_incarnation_of_an_earlier_version() -> None:
    assert expect_peer(status(answer=report(3, incarnation="i", rank_id="r")), "e") == ExpectedPeer(3, "r", "e")
    assert expect_peer(status(answer=report(3, incarnation="i")), "e") == ExpectedPeer(3, "i", "e")


def test_the_rank_counts_whatever_process_has_it() -> None:
    expected = ExpectedPeer(1, "r", "e1")
    assert peer_lost_error(expected, status(answer=replace(RUNNING, rank_id="r", incarnation="another"))) is None
    placeless = status(answer=replace(RUNNING, rank=-1, epoch="", phase=Phase.AWAITING_PEERS, incarnation="another"))
    assert peer_lost_error(expected, replace(placeless, rank=1)) is not None


def test_a_standstill_of_this_process_is_no_silence_of_the_others() -> None:
    peers, engine = heard_peers(0), Engine()
    resumed_at = [float("-inf")]
    monitor = PeerMonitor(peers, engine.submit, TIMEOUT_SECONDS, resumed_at=lambda: resumed_at[0])
    monitor.track(*(expect_peer(status, "e") for status in monitor.statuses()))
    peers[0].silent_for(OVER)
    resumed_at[0] = time.monotonic() - 0.1
    monitor.check()
    resumed_at[0] = float("-inf")
    with pytest.raises(PeerLostError, match="has been silent"):
        monitor.check()


def refuse(peer: SilentPeer, seconds: float, **changes: object) -> None:
    answer = replace(report(1, phase=Phase.SERVING, epoch="e"), **changes)
    peer.status = status(Contact.REFUSED, answer)
    peer.silent_for(seconds)


def awaiting(seconds: float = 15.0) -> tuple[Peers, PeerMonitor, Clock]:
    clock = Clock()
    peers, _, monitor = tracked(1, proves=False, return_seconds=seconds, clock=clock)
    return peers, monitor, clock


def test_an_agent_that_is_away_while_its_rank_serves_is_awaited_for_a_while() -> None:
    peers, monitor, clock = awaiting()
    refuse(peers[1], 14)
    monitor.check()
    assert monitor.trouble.startswith("the agent of rank 1 on spark2 (10.0.0.2) is away, and its rank serves")
    peers[1].status = status(answer=replace(RUNNING, epoch="e", rank_id=""))
    peers[1].silent_for(0)
    monitor.check()
    assert monitor.trouble == ""
    refuse(peers[1], 20)
    monitor.check()
    clock.ahead_seconds = 16
    with pytest.raises(PeerLostError, match=r"refuses connections, its agent ended .*, and none came for 15 s"):
        monitor.check()


def test_a_machine_that_was_silent_before_it_refuses_has_restarted() -> None:
    peers, monitor, _ = awaiting()
    refuse(peers[1], 26)
    with pytest.raises(PeerLostError, match="refuses connections"):
        monitor.check()


def refusing_after_a_silence(clock: Clock, *, token: bool) -> PeerMonitor:
    """The agent of rank 1 has hung until its watchdog ended it; meanwhile the engine has made a token or not."""
    peers, engine, monitor = tracked(1, return_seconds=15, clock=clock)
    peers[1].silent_for(LATE)
    monitor.check()
    engine.makes(token)
    monitor.check()
    refuse(peers[1], LATE)
    return monitor


def test_an_agent_that_hung_until_its_watchdog_is_lost_at_once_where_no_token_came() -> None:
    monitor = refusing_after_a_silence(Clock(), token=False)
    with pytest.raises(PeerLostError, match="refuses connections"):
        monitor.check()


def test_an_agent_that_hung_until_its_watchdog_is_awaited_where_tokens_came() -> None:
    clock = Clock()
    monitor = refusing_after_a_silence(clock, token=True)
    monitor.check()
    assert "is away, and its rank serves" in monitor.trouble
    clock.ahead_seconds = 16
    with pytest.raises(PeerLostError, match="none came for 15 s"):
        monitor.check()


def refusing_without_a_proof(clock: Clock, others: tuple[int, ...], *, token: bool) -> tuple[Engine, PeerMonitor]:
    """As where the timeout is longer than the watchdog's time. The engine makes its first token now, or fails to."""
    peers, engine, monitor = tracked(1, *others, return_seconds=15, clock=clock)
    refuse(peers[1], 33)
    monitor.check()
    assert "is away, and its rank serves" in monitor.trouble
    engine.makes(token)
    return engine, monitor


other_nodes_answer = pytest.mark.parametrize("others", [(), (2,)])


@other_nodes_answer
def test_an_agent_that_refuses_after_a_silence_without_a_proof_is_lost_where_the_engine_does_not_work(
    others: tuple[int, ...],
) -> None:
    _, monitor = refusing_without_a_proof(Clock(), others, token=False)
    with pytest.raises(PeerLostError, match=r"33 s after its last answer, as where its machine has restarted"):
        monitor.check()


@other_nodes_answer
def test_an_agent_that_refuses_after_a_silence_without_a_proof_is_awaited_where_the_engine_works(
    others: tuple[int, ...],
) -> None:
    clock = Clock()
    engine, monitor = refusing_without_a_proof(clock, others, token=True)
    clock.ahead_seconds = 14
    monitor.check()
    monitor.check()
    assert len(engine.requests) == 1
    clock.ahead_seconds = 16
    with pytest.raises(PeerLostError, match="none came for 15 s"):
        monitor.check()


def test_a_standstill_of_this_process_is_no_absence_of_another_agent() -> None:
    """It may be back, and this process could not see that yet."""
    clock, resumed_at = Clock(), [float("-inf")]
    peers, _, monitor = tracked(1, return_seconds=15, clock=clock)
    monitor.resumed_at = lambda: resumed_at[0]
    refuse(peers[1], 1)
    monitor.check()
    clock.ahead_seconds = 17
    resumed_at[0] = clock()
    monitor.check()
    clock.ahead_seconds = 33
    with pytest.raises(PeerLostError, match="none came for 15 s"):
        monitor.check()


@pytest.mark.parametrize("phase", [phase for phase in Phase if phase not in (Phase.SERVING, Phase.DEGRADED)])
def test_an_agent_whose_rank_does_not_serve_is_not_awaited(phase: Phase) -> None:
    peers, monitor, _ = awaiting()
    refuse(peers[1], 0, phase=phase)
    with pytest.raises(PeerLostError):
        monitor.check()


def test_a_second_agent_that_is_not_awaited_is_lost_at_once_while_another_one_is_away() -> None:
    peers, _, monitor = tracked(1, 2, proves=False, return_seconds=15)
    refuse(peers[1], 0)
    monitor.check()
    assert "the agent of rank 1 on spark2" in monitor.trouble
    peers[2].status = status(Contact.REFUSED, report(2, phase=Phase.LOADING, epoch="e"))
    with pytest.raises(PeerLostError, match=r"rank 2 on spark3 \(10\.0\.0\.3\) is gone"):
        monitor.check()


def test_of_two_agents_that_are_away_the_first_is_reported() -> None:
    peers, _, monitor = tracked(1, 2, proves=False, return_seconds=15)
    for peer in peers.values():
        peer.status = replace(peer.status, contact=Contact.REFUSED)
    monitor.check()
    assert monitor.trouble.startswith("the agent of rank 1 on spark2 (10.0.0.2) is away")


def test_an_agent_that_is_back_is_no_trouble_any_more_while_another_node_is_silent() -> None:
    clock = Clock()
    peers, _, monitor = tracked(1, 2, proves=False, return_seconds=15, clock=clock)
    refuse(peers[1], 0)
    monitor.check()
    assert monitor.trouble
    clock.ahead_seconds = 0.9 * TIMEOUT_SECONDS
    peers[1].status = status(Contact.ANSWERS, report(1, phase=Phase.SERVING, epoch="e"))
    peers[1].heard_at = clock()
    monitor.check()
    assert monitor.trouble == ""


def test_no_agent_is_awaited_where_that_is_set_to_0() -> None:
    peers, monitor, _ = awaiting(0)
    refuse(peers[1], 0)
    with pytest.raises(PeerLostError, match=r"its agent ended without a report \("):
        monitor.check()


@pytest.mark.parametrize("contact", [Contact.UNHEARD, Contact.REFUSED])
def test_another_node_that_was_not_heard_yet_has_time_from_the_taking_over_on(contact: Contact) -> None:
    peers, monitor, clock = awaiting()
    peers[1].status = replace(status(contact), report=None)
    peers[1].heard_at = None
    monitor.check()
    clock.ahead_seconds = 26 if contact is Contact.REFUSED else OVER
    with pytest.raises(PeerLostError):
        monitor.check()
