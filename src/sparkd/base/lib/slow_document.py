"""Documents that take seconds to read, or hang, for requests that are answered in an event loop."""

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
"""Shorter than a handler may take. The reading continues, and its document is there for the next request."""
BUSY_STATUS = 503
"""The HTTP status of an answer without the document: the same request may succeed a moment later."""


class SlowDocument(Struct, Generic[T]):
    """A document that takes seconds to read, or hangs. A thread reads it, with one reading at a time."""

    name: str
    read: Callable[[str], T]
    """Takes the request's query."""
    fresh_seconds: float = 0.0
    """Age up to which one reading answers all requests. Those that come while it is read wait for it.

    0: each request has a reading of its own, and those that come during it get None.
    """
    _reading: asyncio.Future[T] | None = None
    _read_at: float = 0.0

    async def get(self, query: str) -> T | None:
        """The document; None after ANSWER_SECONDS, or where another request has the reading, or no thread is free.

        Raises what `read` has raised.
        """
        is_reading = self._reading is not None and not self._reading.done()
        if is_reading and not self.fresh_seconds:
            return None
        with suppress(TimeoutError, BlockingIOError):  # no answer in time, no thread now
            if self._reading is None or (not is_reading and time.monotonic() - self._read_at > self.fresh_seconds):
                self._reading = run_in_thread(self.name, partial(self.read, query))
                self._reading.add_done_callback(self._note_time)
            async with asyncio.timeout(ANSWER_SECONDS):  # Python 3.11's wait_for swallows a cancellation at the end
                return await asyncio.shield(self._reading)
        return None

    def _note_time(self, _reading: object) -> None:
        self._read_at = time.monotonic()
