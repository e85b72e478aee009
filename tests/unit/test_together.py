"""How silence is borne: by who can ask the engine for a token as long as tokens come, by the others until the timeout.

Nothing waits here: how long a node has been silent is told by when it was last heard.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future

import pytest
from msgspec.structs import replace
from tests.unit.nodes import report, snapshot

from sparkd.errors import ExitCode, PeerLostError
from sparkd.peers.peers import Peers
from sparkd.peers.snapshot import Snapshot
from sparkd.peers.ties import tie
from sparkd.report.node_report import Contact, Phase
from sparkd.together import Together

TIMEOUT_SECONDS = 1000.0
LATE, OVER = 800.0, 1001.0
"""In the last quarter of the timeout, and past it."""


class Known(Peers):
    """Nodes as the test says, with no wire."""

    def __init__(self, *ranks: int) -> None:
        super().__init__((), tuple, lambda: None)
        self.seen = {rank: snapshot(said=report(rank, phase=Phase.SERVING, epoch="e")) for rank in ranks}

    def snapshots(self) -> tuple[Snapshot, ...]:
        return tuple(self.seen.values())

    def silent(self, rank: int, seconds: float) -> None:
        self.seen[rank] = replace(self.seen[rank], heard_at=time.monotonic() - seconds)


class Engine:
    """Is asked for tokens, and answers when the test says so."""

    def __init__(self) -> None:
        self.asked: list[tuple[Callable[[], bool], Future[bool]]] = []

    def start(self, work: Callable[[], bool]) -> Future[bool]:
        future: Future[bool] = Future()
        self.asked.append((work, future))
        return future

    def makes(self, token: bool) -> None:
        self.asked[-1][1].set_result(token)


def tied(*ranks: int, proves: bool = True) -> tuple[Known, Engine, Together]:
    peers, engine = Known(*ranks), Engine()
    together = Together(peers, engine.start, TIMEOUT_SECONDS)
    together.prove = (lambda _seconds: True) if proves else None
    together.tie(tuple(tie(one, "e") for one in peers.snapshots()))
    return peers, engine, together


def test_who_can_prove_nothing_bears_silence_until_the_timeout() -> None:
    peers, engine, together = tied(0, proves=False)
    peers.silent(0, TIMEOUT_SECONDS - 1)
    together.look()
    assert (together.trouble, engine.asked) == ("", [])
    peers.silent(0, OVER)
    with pytest.raises(PeerLostError, match=r"rank 0 on spark1 \(10\.0\.0\.1\) has been silent for 1001 s") as caught:
        together.look()
    assert (caught.value.code, caught.value.hint) == (ExitCode.PEER_LOST, "sparkd starts again and awaits it")


def test_a_silence_that_ends_in_time_leaves_nothing_behind_however_often() -> None:
    for proves in (True, False):
        peers, _, together = tied(0, proves=proves)
        for _ in range(100):
            peers.silent(0, 700)
            together.look()
            peers.silent(0, 0)
            together.look()
        assert together.trouble == ""


def test_the_engine_is_asked_once_in_the_last_part_of_the_timeout_and_has_that_part_for_it() -> None:
    peers, engine, together = tied(1)
    given: list[float] = []

    def prove(seconds: float) -> bool:
        given.append(seconds)
        return True

    together.prove = prove
    peers.silent(1, 749)
    together.look()
    assert engine.asked == []
    for seconds in (751, 800, 900):
        peers.silent(1, seconds)
        together.look()
    ((work, _),) = engine.asked
    assert work()
    assert given == pytest.approx([249], abs=0.5)


def test_tokens_make_the_longest_silence_bearable_and_the_trouble_is_told() -> None:
    peers, engine, together = tied(1)
    peers.silent(1, LATE)
    together.look()
    engine.makes(True)
    for seconds in (OVER, 100 * OVER):
        peers.silent(1, seconds)
        together.look()
        assert together.trouble.startswith(f"rank 1 on spark2 (10.0.0.2) has been silent for {seconds:.0f} s")
        assert together.trouble.endswith("; the engine makes tokens")
    peers.silent(1, 0)
    together.look()
    assert together.trouble == ""


def test_a_proof_grows_old_and_the_next_one_may_fail() -> None:
    peers, engine = Known(1), Engine()
    together = Together(peers, engine.start, 0.08)  # a token proves for a quarter of it
    together.prove = lambda _seconds: True
    together.tie(tuple(tie(one, "e") for one in peers.snapshots()))
    peers.silent(1, 10)
    together.look()
    engine.makes(True)
    together.look()
    assert len(engine.asked) == 1
    time.sleep(0.03)
    together.look()
    assert len(engine.asked) == 2
    together.look()
    engine.makes(False)
    with pytest.raises(PeerLostError, match="and the engine makes no token"):
        together.look()


def test_no_token_ends_it_at_the_timeout_and_not_before() -> None:
    peers, engine, together = tied(1)
    peers.silent(1, LATE)
    together.look()
    engine.makes(False)
    together.look()
    peers.silent(1, OVER)
    with pytest.raises(PeerLostError, match="has been silent for 1001 s, and the engine makes no token"):
        together.look()


def test_past_the_timeout_an_answer_that_is_still_to_come_is_awaited() -> None:
    peers, engine, together = tied(1)
    peers.silent(1, OVER)
    for _ in range(3):
        together.look()
    assert len(engine.asked) == 1
    assert together.trouble == ""  # no token has come yet
    engine.makes(False)
    with pytest.raises(PeerLostError):
        together.look()


@pytest.mark.parametrize("answered_in_time", [True, False])
def test_no_token_in_a_silence_that_ended_says_nothing_of_the_next_one(answered_in_time: bool) -> None:
    peers, engine, together = tied(1)
    peers.silent(1, LATE)
    together.look()
    if answered_in_time:
        engine.makes(False)
        together.look()
    peers.silent(1, 0)
    together.look()
    if not answered_in_time:
        engine.makes(False)
    peers.silent(1, LATE)
    together.look()
    assert len(engine.asked) == 2
    peers.silent(1, OVER)
    together.look()
    engine.makes(True)
    together.look()
    assert together.trouble.endswith("the engine makes tokens")


def test_the_one_that_is_silent_for_longest_counts() -> None:
    peers, _, together = tied(1, 2, 3, proves=False)
    peers.silent(2, OVER)
    peers.silent(3, LATE)
    with pytest.raises(PeerLostError, match="rank 2 on spark3"):
        together.look()


def test_what_happened_goes_before_what_is_only_silent() -> None:
    peers, _, together = tied(1, 2, proves=False)
    peers.silent(1, OVER)
    peers.seen[2] = replace(peers.seen[2], contact=Contact.REFUSED)
    with pytest.raises(PeerLostError, match=r"rank 2 on spark3 .* refuses connections"):
        together.look()


def test_tokens_excuse_nothing_that_happened() -> None:
    peers, engine, together = tied(1)
    peers.silent(1, LATE)
    together.look()
    engine.makes(True)
    peers.seen[1] = snapshot(said=report(phase=Phase.FAILED, message="boom", epoch="e"))
    with pytest.raises(PeerLostError, match="failed: boom"):
        together.look()


def test_who_is_not_tied_to_is_shown_and_never_lost() -> None:
    peers = Known(0, 2)
    peers.silent(2, 100 * OVER)
    peers.seen[0] = snapshot(Contact.REFUSED, report(0, phase=Phase.FAILED))
    shown: list[tuple[Snapshot, ...]] = []
    together = Together(peers, Engine().start, TIMEOUT_SECONDS)
    together.show = shown.append
    assert together.look() == peers.snapshots()
    together.tie((tie(peers.seen[0], "e"),))
    with pytest.raises(PeerLostError):
        together.look()
    together.untie()
    together.look()
    assert len(shown) == 3


def test_a_node_alone_has_nobody_to_lose() -> None:
    assert Together(Peers((), tuple, lambda: None), Engine().start, 1).look() == ()
