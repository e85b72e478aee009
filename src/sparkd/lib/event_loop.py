"""One asyncio loop in a thread of its own: all networking of an agent lives in it."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

T = TypeVar("T")

CLOSE_SECONDS = 5.0
"""For tasks to end once they are cancelled. The thread is a daemon: one that hangs keeps no process alive."""


class _Loop(asyncio.SelectorEventLoop):
    """Looks names up in a thread, as asyncio does, and addresses at once: a name server that hangs delays no peer."""

    async def getaddrinfo(self, host: Any, port: Any, **options: Any) -> Any:
        numeric = options.get("flags", 0) | socket.AI_NUMERICHOST | socket.AI_NUMERICSERV
        try:
            return socket.getaddrinfo(host, port, **{**options, "flags": numeric})
        except socket.gaierror:
            return await super().getaddrinfo(host, port, **options)


class EventLoop:
    """Runs from `start` to `close`. Every method may be called from any thread but the loop's own.

    `broken` gets, in the loop's thread, the error that a `spawn`ed task or the loop itself died of.
    """

    def __init__(self, broken: Callable[[BaseException], object] = lambda _: None) -> None:
        self._loop = _Loop()
        self._broken = broken
        self._tasks: set[asyncio.Task[None]] = set()
        """asyncio itself keeps weak references to tasks only."""
        self._pinged_at: float | None = None
        self._closing = False
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
        self.call(self._begin, work)

    def call(self, function: Callable[..., object], *args: object) -> None:
        """Call `function` in the loop's thread, soon. Does nothing once the loop has ended."""
        try:
            self._loop.call_soon_threadsafe(function, *args)
        except RuntimeError:
            if not self._loop.is_closed():
                raise

    def unanswered_seconds(self) -> float:
        """Seconds since an earlier call of this that the loop has not answered yet: it hangs, or is that busy.

        0 where it has answered, and this call pings again. 0 where the loop has ended: `broken` got the reason.
        """
        pinged_at = self._pinged_at  # the loop's thread may clear it meanwhile
        if self._loop.is_closed():
            return 0.0
        if pinged_at is None:
            self._pinged_at = time.monotonic()
            self.call(self._answer_ping)
            return 0.0
        return time.monotonic() - pinged_at

    def close(self) -> None:
        """Cancel every task, and wait for their end, but not for ever."""
        self._closing = True
        self.call(self._loop.stop)
        self._thread.join(2 * CLOSE_SECONDS)

    def _answer_ping(self) -> None:
        self._pinged_at = None

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            error = task.exception()
        else:
            error = None if self._closing else RuntimeError("a network task was cancelled")
        if error is not None:
            self._broken(error)

    def _run(self) -> None:
        try:
            self._loop.run_forever()
            left = asyncio.all_tasks(self._loop)
            for task in left:
                task.cancel()
            if left:
                self._loop.run_until_complete(asyncio.wait(left, timeout=CLOSE_SECONDS))
            self._loop.run_until_complete(self._loop.shutdown_asyncgens())
        except BaseException as error:  # the agent must not go on without its networking
            self._broken(error)
        finally:
            self._loop.close()
