"""One asyncio loop in a thread of its own: all networking of an agent lives in it."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

T = TypeVar("T")


def ignore_error(_error: BaseException) -> None: ...


class EventLoop:
    """Runs from `start` to `close`. Every method may be called from any thread but the loop's own.

    `broken` gets, in the loop's thread, the error that a `spawn`ed task or the loop itself died of.
    """

    def __init__(self, broken: Callable[[BaseException], None] = ignore_error) -> None:
        self._loop = asyncio.new_event_loop()
        self._broken = broken
        self._tasks: set[asyncio.Task[None]] = set()
        """asyncio itself keeps weak references to tasks only."""
        self._pinged_at: float | None = None
        self._thread = threading.Thread(target=self._run, name="network", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def submit(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Run `work` in the loop; its result or its error is the future's."""
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """The result of `work`, which keeps its own deadline: the calling thread waits for it."""
        return self.submit(work).result()

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Run `work` until it ends or the loop is closed. Its error goes to `broken`: the agent needs it."""
        self._loop.call_soon_threadsafe(self._begin, work)

    def call(self, function: Callable[..., object], *args: object) -> None:
        """Call `function` in the loop's thread, soon."""
        self._loop.call_soon_threadsafe(function, *args)

    def unanswered_seconds(self) -> float:
        """For how long the loop has not turned, as far as is known: since an earlier call of this that it has not
        answered yet. 0 where it answered; then this call asks anew.
        """
        if self._pinged_at is None:
            self._pinged_at = time.monotonic()
            self._loop.call_soon_threadsafe(self._answer_ping)
            return 0.0
        return time.monotonic() - self._pinged_at

    def close(self) -> None:
        """Cancel every task, and wait for their end."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    def _answer_ping(self) -> None:
        self._pinged_at = None

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._broken(error)

    def _run(self) -> None:
        try:
            self._loop.run_forever()
            left = asyncio.all_tasks(self._loop)
            for task in left:
                task.cancel()
            self._loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
        except BaseException as error:  # the agent must not go on without its networking
            self._broken(error)
        finally:
            self._loop.close()
