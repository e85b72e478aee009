"""This rank and the others: looked at in every wait of the main loop, so that no rank outlives another.

What happened (a rank that ended, a new life, a refused connection) is acted on at once. Silence is borne for a while: a
link may be noisy. A head that serves asks the engine for a token before it gives up, and tokens mean that the others
live; a worker, or a head that still loads, has nobody to ask.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import Any

from sparkd.errors import PeerLostError
from sparkd.peers.peers import Peers
from sparkd.peers.snapshot import Snapshot
from sparkd.peers.ties import Lost, Silent, Tie, judge

PROOF_SHARE = 0.25
"""Of the timeout: how long the engine has for a token, in the last part of the silence, so that both end together."""
RETRY_SECONDS = 1.0
"""After a proof that failed while there is time: one error is no silence."""
HINT = "sparkd starts again and awaits it"


class Together:
    """For the main thread. A node alone has no peers, and nothing is ever lost."""

    def __init__(
        self,
        peers: Peers,
        submit: Callable[[Coroutine[Any, Any, bool]], Future[bool]],
        timeout_seconds: float,
    ) -> None:
        """`submit` runs work in the network's loop and rings the bell."""
        self.peers = peers
        self.show: Callable[[tuple[Snapshot, ...]], None] = lambda _: None
        """Told what is seen at each look."""
        self.prove: Callable[[float], Coroutine[Any, Any, bool]] | None = None
        """Whether the engine makes a token within so many seconds; None where there is nobody to ask."""
        self.trouble = ""
        """What is wrong while the engine is still given time; empty when all is well."""
        self._submit = submit
        self._timeout_seconds = timeout_seconds
        self._ties: dict[int, Tie] = {}
        self._asked: Future[bool] | None = None
        self._proven: bool | None = None
        self._proven_at = 0.0

    def tie(self, ties: tuple[Tie, ...]) -> None:
        """From now on, whoever of these is lost ends this life."""
        self._ties = {one.rank: one for one in ties}

    def untie(self) -> None:
        """This life ends anyway."""
        self._ties = {}

    def unheard_since(self, moment: float) -> Snapshot | None:
        """One that we are tied to and that has not answered since, monotonic; None where all have."""
        seen = (one for one in self.peers.snapshots() if one.rank in self._ties)
        return next((one for one in seen if one.heard_at is None or one.heard_at < moment), None)

    def look(self) -> tuple[Snapshot, ...]:
        """What is known of the others now. Raises PeerLostError (exit 14) where one that we are tied to is lost."""
        seen = self.peers.snapshots()
        self.show(seen)
        now = time.monotonic()
        quietest: Silent | None = None
        for one in seen:
            if one.rank not in self._ties:
                continue
            match judge(self._ties[one.rank], one, now):
                case Lost(reason):
                    raise PeerLostError(reason, HINT)
                case Silent() as silent:
                    quietest = silent if quietest is None or silent.seconds > quietest.seconds else quietest
        if quietest is not None:
            self._bear(quietest, now)
        return seen

    def _bear(self, silent: Silent, now: float) -> None:
        """Silence: what the engine says decides, where it can be asked."""
        proof_seconds = PROOF_SHARE * self._timeout_seconds
        if silent.seconds < self._timeout_seconds - proof_seconds:
            # An answer that is still to come is one to a silence that has ended: it must not decide the next one.
            self._asked, self._proven, self.trouble = None, None, ""
            return
        over = silent.seconds >= self._timeout_seconds
        if self.prove is None:
            if over:
                raise PeerLostError(silent.reason, HINT)
            return
        if self._asked is not None and self._asked.done():
            self._proven, self._asked, self._proven_at = self._asked.result(), None, now
        if over and self._proven is False:
            raise PeerLostError(f"{silent.reason}, and the engine makes no token", HINT)
        self.trouble = f"{silent.reason}; the engine makes tokens" if over and self._proven else ""
        pause = proof_seconds if self._proven else RETRY_SECONDS
        if self._asked is None and (self._proven is None or now - self._proven_at >= pause):
            left = self._timeout_seconds - silent.seconds
            self._asked = self._submit(self.prove(proof_seconds if over else max(RETRY_SECONDS, left)))
