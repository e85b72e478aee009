"""Readers of other nodes that are as silent as a test says."""

import time

from tests.unit.nodes import report, status

from sparkd.agent.cluster.peer_reader import PeerReader
from sparkd.base.status.model import Phase


class SilentPeer(PeerReader):
    """One node as the test says, with no wire."""

    def __init__(self, rank: int) -> None:
        self.status = status(answer=report(rank, phase=Phase.SERVING, epoch="e"))

    def silent_for(self, seconds: float) -> None:
        self.heard_at = time.monotonic() - seconds
