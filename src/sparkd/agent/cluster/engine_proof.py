"""The proof that a serving engine works, while another node's agent is silent or away."""

from collections.abc import Callable, Coroutine
from typing import Any

from msgspec import Struct

from sparkd.base.lib.main_loop import Outcome

RETRY_SECONDS = 1.0
"""Pause after a failed proof, while there is time."""


class EngineProof(Struct):
    """Requests one proof at a time. Used by the main thread."""

    prove: Callable[[float], Coroutine[Any, Any, bool]]
    """prove(seconds) returns whether the engine answers in that time; on the head, whether it makes a token."""
    seconds: float
    """Time for a proof, and how long it holds."""
    limit_seconds: float
    """A silence may last so long while the engine proves itself."""
    submit: Callable[[Coroutine[Any, Any, bool]], Outcome[bool]]
    clock: Callable[[], float]
    _taken_at: float = 0.0
    _under_way: Outcome[bool] | None = None
    _result: bool | None = None

    def request(self, silent_seconds: float) -> bool | None:
        """Whether the engine has worked since a silence of so many seconds began; None while a proof is under way."""
        proven = self._read_result()
        if proven is None and silent_seconds >= self.limit_seconds:
            return False
        if proven is None:
            self._begin(self.seconds)
        return proven

    def renew(self, left_seconds: float, now: float) -> bool | None:
        """The last result in this silence; None before the first. Requests another one when that is old or negative.

        `left_seconds`: until the silence is too long without a proof, or below 0.
        """
        proven = self._read_result()
        pause_seconds = self.seconds if proven else RETRY_SECONDS
        if proven is None or now - self._taken_at >= pause_seconds:
            self._begin(self.seconds if left_seconds <= 0 else max(RETRY_SECONDS, left_seconds))
        return proven

    def reset(self) -> None:
        """Forget the result, and a proof that is still under way."""
        self._under_way, self._result = None, None

    def _begin(self, seconds: float) -> None:
        if self._under_way is None:
            self._under_way = self.submit(self.prove(seconds))

    def _read_result(self) -> bool | None:
        if self._under_way is not None and self._under_way.done():
            self._result, self._under_way, self._taken_at = self._under_way.result(), None, self.clock()
        return self._result
