"""The one rank that an agent launches: there is none before its launch, and none after one that nobody could watch."""

from __future__ import annotations

from sparkd.agent.engine.rank import Running
from sparkd.base.lib.errors import RankEndedError


class OwnRank:
    """For the main thread."""

    def __init__(self) -> None:
        self.running: Running | None = None

    def take(self, running: Running) -> None:
        self.running = running

    def drop(self) -> None:
        """It was ended on purpose, and the next launch replaces it."""
        self.running = None

    def raise_if_killed(self) -> None:
        """Raises MemoryGuardError where the guard has killed it."""
        if self.running is not None:
            self.running.raise_if_killed()

    def raise_if_ended(self) -> None:
        """Raises RankEndedError."""
        if self.running is not None and self.running.rank.ended.is_set():
            raise RankEndedError("the engine ended")

    @property
    def guard_state(self) -> str:
        """One of GUARD_STATES; empty without a rank."""
        return self.running.guard_state if self.running is not None else ""

    @property
    def released_bytes(self) -> int:
        """Of page cache, since the launch."""
        return self.running.released_bytes if self.running is not None else 0
