"""One asyncio loop in a thread of its own, for all networking of an agent."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, TypeVar

from sparkd.lib import start_thread

T = TypeVar("T")

CLOSE_SECONDS = 5.0
"""For cancelled tasks to end. The thread is a daemon: one that hangs keeps no process alive."""
CLOSE_TURNS = 100
"""Of the loop at its end, at most: tasks without end may make tasks."""


class _Loop(asyncio.SelectorEventLoop):
    """Resolves names in a thread, as asyncio does, and addresses at once: a name server that hangs delays no peer."""

    async def getaddrinfo(self, host: Any, port: Any, **options: Any) -> Any:
        numeric = options.get("flags", 0) | socket.AI_NUMERICHOST | socket.AI_NUMERICSERV
        try:
            return socket.getaddrinfo(host, port, **{**options, "flags": numeric})
        except socket.gaierror:
            try:
                return await super().getaddrinfo(host, port, **options)
            except RuntimeError as error:  # no thread can be started now
                raise socket.gaierror(socket.EAI_AGAIN, str(error)) from None


class EventLoop:
    """Runs from `start` to `close`. Every method may be called from any thread but the loop's own.

    `broken` gets, in the loop's thread, the error that ended a `spawn`ed task or the loop itself.
    """

    def __init__(self, broken: Callable[[BaseException], object] = lambda _: None) -> None:
        self._loop = _Loop()
        self._broken = broken
        self._spawned: set[Future[None]] = set()
        """asyncio itself keeps weak references to tasks only."""
        self._pinged_at: float | None = None
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="network", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def submit(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Run `work` until it ends or the loop is closed. Its error goes to `broken`.

        Once the loop has ended, `work` is closed without being run.
        """
        try:
            future = self.submit(work)
        except RuntimeError:
            work.close()
            if not self._loop.is_closed():
                raise
            return
        self._spawned.add(future)
        future.add_done_callback(self._end)

    def call(self, function: Callable[..., object], *args: object) -> None:
        """Call `function` in the loop's thread, soon. Does nothing once the loop has ended."""
        try:
            self._loop.call_soon_threadsafe(function, *args)
        except RuntimeError:
            if not self._loop.is_closed():
                raise

    def unanswered_seconds(self) -> float:
        """Seconds since an earlier call's ping, while the loop has not answered it.

        0 where it has answered, and this call pings again; 0 where the loop has ended: `broken` got the reason.
        """
        pinged_at = self._pinged_at  # the loop's thread may clear it meanwhile
        if self._loop.is_closed():
            return 0.0
        if pinged_at is not None:
            return time.monotonic() - pinged_at
        self._pinged_at = time.monotonic()
        self.call(setattr, self, "_pinged_at", None)
        return 0.0

    def close(self) -> None:
        self._closing = True
        self.call(self._loop.stop)
        self._thread.join(2 * CLOSE_SECONDS)

    def _end(self, future: Future[None]) -> None:
        self._spawned.discard(future)
        if not future.cancelled():
            error = future.exception()
        else:
            error = None if self._closing else RuntimeError("a network task was cancelled")
        if error is not None:
            self._broken(error)

    def _run(self) -> None:
        try:
            self._loop.run_forever()
            # A task that has not begun yet would leave its coroutine unawaited, and one that begins may make more.
            left = asyncio.all_tasks(self._loop)
            for _ in range(CLOSE_TURNS):
                self._loop.run_until_complete(asyncio.sleep(0))
                begun, left = left, asyncio.all_tasks(self._loop)
                if left <= begun:
                    break
            for task in left:
                task.cancel()
            if left:
                self._loop.run_until_complete(asyncio.wait(left, timeout=CLOSE_SECONDS))
            self._loop.run_until_complete(self._loop.shutdown_asyncgens())
        except BaseException as error:  # the agent must not run without its networking
            self._broken(error)
        finally:
            self._loop.close()


def run_in_thread(name: str, work: Callable[[], T]) -> asyncio.Future[T]:
    """Run it beside the running loop, in a daemon thread: it may hang, and holds no process's end as an executor does.

    Its error is the future's. Raises BlockingIOError where no thread can be started now.
    """
    loop = asyncio.get_running_loop()
    outcome: asyncio.Future[T] = loop.create_future()

    def settle(result: T | None, error: BaseException | None) -> None:
        if outcome.cancelled():
            return
        if error is not None:
            outcome.set_exception(error)
        else:
            outcome.set_result(result)  # type: ignore[arg-type]  # None only where T is

    def run() -> None:
        result: T | None = None
        error: BaseException | None = None
        try:
            result = work()
        except StopIteration as stop:  # which no future can carry
            error = RuntimeError(repr(stop))
        except BaseException as raised:
            error = raised
        with suppress(RuntimeError):  # the loop has ended
            loop.call_soon_threadsafe(settle, result, error)

    start_thread(threading.Thread(target=run, name=name, daemon=True))
    return outcome


def read_in_thread(name: str, read: Callable[[], bytes]) -> asyncio.Future[bytes]:
    """Run it beside the running loop, in a daemon thread: it may hang. Its error is an empty result.

    Raises BlockingIOError where no thread can be started now.
    """
    loop = asyncio.get_running_loop()
    reading: asyncio.Future[bytes] = loop.create_future()

    def run() -> None:
        body = b""
        try:
            body = read()
        finally:
            with suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(reading.set_result, body)

    start_thread(threading.Thread(target=run, name=name, daemon=True))
    return reading
