"""What takes time to read, or hangs, for requests that are answered in an event loop."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Generic, TypeVar

from msgspec import Struct

from sparkd.base.lib.event_loop import run_in_thread

T = TypeVar("T")

ANSWER_SECONDS = 8.0
"""Shorter than a handler may take; what is read meanwhile is there for the next request."""


class SlowDocument(Struct, Generic[T]):
    """What takes seconds to read, or hangs: read beside the loop, once at a time."""

    name: str
    read: Callable[[str], T]
    """Read it by the request's query."""
    fresh_seconds: float = 0.0
    """How long it answers all requests, as it does while it is read; 0: each gets its own, and none meanwhile."""
    _reading: asyncio.Future[T] | None = None
    _read_at: float = 0.0

    async def get(self, query: str) -> T | None:
        """None where it takes too long, and where there is no thread now. Raises what `read` has raised."""
        busy = self._reading is not None and not self._reading.done()
        if busy and not self.fresh_seconds:
            return None
        with suppress(TimeoutError, BlockingIOError):  # no answer in time, no thread now
            if self._reading is None or (not busy and time.monotonic() - self._read_at > self.fresh_seconds):
                self._reading = run_in_thread(self.name, partial(self.read, query))
                self._reading.add_done_callback(self._note_time)
            return await asyncio.wait_for(asyncio.shield(self._reading), ANSWER_SECONDS)
        return None

    def _note_time(self, _reading: object) -> None:
        self._read_at = time.monotonic()
