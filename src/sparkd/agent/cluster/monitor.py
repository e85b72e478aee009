"""Checks the other ranks in every wait of the main loop, so that no rank outlives another.

A rank of tensor parallelism is useless without the others, and vLLM reports no loss: a headless worker never notices
that its head died, and a head's /health stays 200 without its worker.

An event (a rank has ended, or another one is in its place) ends this rank at once. So does a refused connection, unless
the rank there serves: a serving rank outlives a crashed agent, and the next agent takes it over. Silence is tolerated
for a while, because links are noisy. Then a serving head requests a token from the engine: a token proves that all
ranks work. A worker can only see that its head's engine answers: then just the agent there hangs, and its watchdog is
going to end it. A head that still loads has no such proof.
"""

import math
import time
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

from msgspec import Struct

from sparkd.agent.cluster.engine_proof import EngineProof
from sparkd.agent.cluster.peer_reader import PeerReader
from sparkd.base.lib.errors import Cause, PeerLostError
from sparkd.base.lib.main_loop import Outcome
from sparkd.base.status import phases
from sparkd.base.status.model import Contact, PeerStatus

PROOF_SHARE = 0.25
"""Share of the timeout: the last part of a silence, in which the engine must prove that it works."""
LATE_SECONDS = 10.0
"""Longest time from an agent's last answer to the first refusal after its crash: an answer is held for 5 s. A machine
that was silent for longer has restarted, unless the engine makes tokens: then its agent hung, and was ended for that.
"""
HINT = "sparkd starts again and awaits it"
ADDRESS_HINT = "ip -brief address; look at the cable, and whether the other node is up"


class ExpectedPeer(Struct, frozen=True):
    """Another rank that this one depends on. `epoch`: that which it has joined or may join."""

    rank: int
    launch_id: str
    epoch: str


def expect_peer(peer: PeerStatus, epoch: str) -> ExpectedPeer:
    """The peer, whose report is known, as it has to stay."""
    assert peer.report is not None
    return ExpectedPeer(peer.rank, peer.report.launch_id, epoch)


def peer_lost_error(expected: ExpectedPeer, peer: PeerStatus) -> PeerLostError | None:
    """Why an expected peer is lost; None where it is not. Pure."""
    rank = f"rank {peer.rank} on {peer.name}"
    report = peer.report
    if report is None:  # this node's agent has just taken over its own rank, and has heard nothing yet
        return None
    if report.launch_id != expected.launch_id:
        last_end = f"; it ended before with: {report.last_cause}" if report.last_cause else ""
        has_failed = report.last_cause and report.last_cause_code != Cause.AGENT_KILLED
        return PeerLostError(f"{rank} has restarted{last_end}", HINT, cause=Cause.PEER_FAILED if has_failed else None)
    if (loss := phases.find_loss(report)) is not None:
        return PeerLostError(f"{rank} {loss.text}: {report.message}", HINT, cause=loss.cause)
    # A worker joins late. A head without an epoch has called before, was blocked since, and takes other ranks.
    if report.epoch != expected.epoch and (report.epoch or not expected.rank):
        return PeerLostError(f"{rank} belongs to another launch", HINT)
    return None


def silent_peer_error(peer: PeerStatus, what: str) -> PeerLostError:
    """The error for a peer that does not answer; `what` says for how long. This node's own address may be gone."""
    if peer.own_address_gone:
        reason = f"{peer.said}: rank {peer.rank} on {peer.name} {what}"
        return PeerLostError(reason, ADDRESS_HINT, cause=Cause.OWN_ADDRESS_GONE)
    return PeerLostError(f"rank {peer.rank} on {peer.name} {what}", HINT, cause=Cause.PEER_SILENT)


class PeerMonitor(Struct):
    """Watches the ranks that this one depends on. Used by the main thread."""

    readers: Mapping[int, PeerReader]
    """Readers by rank, in order."""
    submit: Callable[[Coroutine[Any, Any, bool]], Outcome[bool]]
    """`MainLoop.start`: the end of what it runs wakes the loop."""
    timeout_seconds: float
    return_seconds: float = 0.0
    """How long the agent of a serving rank may be away."""
    resumed_at: Callable[[], float] = lambda: float("-inf")
    """Monotonic time since which this process ran without a standstill: only silence after it counts."""
    on_check: Callable[[tuple[PeerStatus, ...]], object] = lambda _: None
    clock: Callable[[], float] = time.monotonic
    trouble: str = ""
    """A problem that does not end the rank yet; empty where there is none."""
    _expected: dict[int, ExpectedPeer] = {}
    _tracked_since: float = 0.0
    _refused_at: dict[int, float] = {}
    """Times since which nodes refuse connections, by rank."""
    _proof: EngineProof | None = None
    """None before the engine serves."""

    def track(self, *expected: ExpectedPeer) -> None:
        """Let `check` raise the loss of any of these from now on."""
        self._expected, self._tracked_since = {peer.rank: peer for peer in expected}, self.clock()

    @property
    def tracked(self) -> tuple[ExpectedPeer, ...]:
        return tuple(self._expected.values())

    def untrack_all(self) -> None:
        self._expected = {}

    def prove_by(self, prove: Callable[[float], Coroutine[Any, Any, bool]], limit_seconds: float = math.inf) -> None:
        """Let the serving engine prove itself in a silence of up to `limit_seconds`: see `EngineProof`."""
        seconds = PROOF_SHARE * self.timeout_seconds
        self._proof = EngineProof(prove, seconds, limit_seconds, self.submit, self.clock)

    def statuses(self) -> tuple[PeerStatus, ...]:
        """Statuses in rank order."""
        return tuple(reader.status for reader in self.readers.values())

    def silent_since(self, moment: float) -> PeerStatus | None:
        """A tracked peer that has not answered since `moment` (monotonic); None where all have."""
        tracked = (reader for rank, reader in self.readers.items() if rank in self._expected)
        silent = (reader for reader in tracked if reader.heard_at is None or reader.heard_at < moment)
        return next((reader.status for reader in silent), None)

    def check(self) -> tuple[PeerStatus, ...]:
        """The current statuses. Raises PeerLostError (exit 14) where a tracked peer is lost."""
        peers = self.statuses()
        self.on_check(peers)
        now = self.clock()
        silences, absences = list[tuple[float, PeerStatus]](), list[str]()
        for peer in peers:
            if (expected := self._expected.get(peer.rank)) is None:
                continue
            if error := peer_lost_error(expected, peer):
                raise error
            heard_at = max(self.readers[peer.rank].heard_at or self._tracked_since, self.resumed_at())
            if peer.contact is Contact.REFUSED:
                refused_at = max(self._refused_at.setdefault(peer.rank, now), heard_at, self._tracked_since)
                absences.append(self._judge_absence(peer, now - refused_at, refused_at - heard_at))
            else:
                self._refused_at.pop(peer.rank, None)
                silences.append((max(0.0, now - heard_at), peer))
        longest = max(silences, key=lambda silence: silence[0], default=None)
        silence = self._judge_silence(*longest, now) if longest else ""
        self.trouble = next(filter(None, (silence, *absences)), "")
        return peers

    def _judge_absence(self, peer: PeerStatus, away_seconds: float, silent_seconds: float) -> str:
        """The trouble while a serving rank's next agent is awaited. Raises PeerLostError where none is, or too long.

        `away_seconds`: since the first refusal; `silent_seconds`: from the last answer until then.
        """
        rank = f"rank {peer.rank} on {peer.name}"
        reason = f"{rank} is gone: {peer.address} refuses connections, its agent ended without a report"
        is_serving = peer.report is None or phases.answers_requests(peer.report)
        limit = self.return_seconds if is_serving else 0.0
        if not limit:
            raise PeerLostError(reason, HINT)
        if away_seconds >= limit:
            raise PeerLostError(f"{reason}, and none came for {limit:.0f} s", HINT)
        # A machine that was silent for longer has restarted, unless the engine works, which needs all ranks. Where it
        # does not, the silence counts, too; while a proof is under way, not yet.
        late_seconds = silent_seconds - LATE_SECONDS
        is_proven = self._proof.request(silent_seconds) if late_seconds > 0 and self._proof is not None else False
        if late_seconds > 0 and is_proven is False and away_seconds + late_seconds >= limit:
            what = f"{silent_seconds:.0f} s after its last answer, as where its machine has restarted"
            raise PeerLostError(f"{reason}, {what}", HINT)
        return f"the agent of {rank} is away, and its rank serves: the next one is awaited for {limit:.0f} s"

    def _judge_silence(self, seconds: float, peer: PeerStatus, now: float) -> str:
        """The trouble after a silence of so many seconds, in which a serving engine may prove itself.

        Raises PeerLostError where the timeout has passed, and there is no proof or it has failed.
        """
        if seconds < self.timeout_seconds * (1 - PROOF_SHARE):
            # The silence has ended, or is short: a proof still under way must not decide about the next one.
            if self._proof is not None and not self._refused_at:
                self._proof.reset()
            return ""
        detail = f": {peer.said}" if peer.said and not peer.own_address_gone else ""
        lost = silent_peer_error(peer, f"has been silent for {seconds:.0f} s{detail}")
        left_seconds = self.timeout_seconds - seconds
        if self._proof is None or seconds >= self._proof.limit_seconds:
            if left_seconds <= 0:
                raise lost
            return ""
        is_proven = self._proof.renew(left_seconds, now)  # None before the first result
        if left_seconds <= 0 and is_proven is False:
            raise PeerLostError(f"{lost.reason}, and the engine does not answer", lost.hint, cause=lost.cause)
        return f"{lost.reason}; the engine answers" if left_seconds <= 0 and is_proven else ""
