"""asyncio's loop without its thread pool: a call that may hang runs in a daemon thread, and never delays the exit.

Every task is created here, so that none is lost, and the error of each is read.
"""

import asyncio
import socket
import sys
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, TypeVar

from sparkd.base.lib import start_thread

T = TypeVar("T")

CLOSE_SECONDS = 1.0
"""Time for cancelled tasks to end."""


class EventLoop(asyncio.SelectorEventLoop):
    """A loop for the thread that turns it. Any thread may call `call_soon_threadsafe`."""

    def __init__(self, broken: Callable[[BaseException], object] = lambda _: None) -> None:
        """`broken` gets the error that ended a task of `spawn`."""
        super().__init__()
        self._broken = broken
        self._spawned: set[asyncio.Task[None]] = set()
        """asyncio itself keeps weak references to tasks only."""

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Run `work`, which never ends by itself, until the loop is closed. Its end is a bug, as an error is."""
        task = self.create_task(work)
        self._spawned.add(task)
        task.add_done_callback(self._report_end)

    def begin(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """The task of `work`. The caller may read its result or error, or leave it."""
        task = self.create_task(work)
        task.add_done_callback(_read_error)
        return task

    def _report_end(self, task: asyncio.Task[None]) -> None:
        if task not in self._spawned:  # the loop is being closed
            return
        self._spawned.discard(task)
        error = None if task.cancelled() else task.exception()
        self._broken(error or RuntimeError(f"a task has ended: {task.get_coro()}"))

    async def getaddrinfo(self, host: Any, port: Any, **options: Any) -> Any:
        """Resolve an address at once, a name in a thread: a name server that hangs delays no other task."""
        numeric = options.get("flags", 0) | socket.AI_NUMERICHOST | socket.AI_NUMERICSERV
        try:
            return socket.getaddrinfo(host, port, **{**options, "flags": numeric})
        except socket.gaierror:
            try:
                return await super().getaddrinfo(host, port, **options)
            except BlockingIOError as error:
                raise socket.gaierror(socket.EAI_AGAIN, str(error)) from None

    def run_in_executor(self, executor: Any, func: Callable[..., T], *args: Any) -> asyncio.Future[T]:  # type: ignore[override]  # a future as well
        """Run what asyncio itself leaves to threads, such as resolving names. Raises as `run_in_thread`."""
        assert executor is None, "no pool"
        return run_in_thread("executor", partial(func, *args), self)

    def turn(self, seconds: float) -> None:
        """Run the loop until `stop`, for `seconds` at most; at least one turn."""
        timer = self.call_later(max(0.0, seconds), self.stop)
        if seconds <= 0:
            self.stop()  # it turns once nevertheless
        try:
            self.run_forever()
        finally:
            timer.cancel()

    def finish(self) -> None:
        """Cancel all tasks, let them end, and close the loop. It must not run."""
        if self.is_closed():
            return
        self._spawned.clear()
        # A task that has not begun yet would leave its coroutine unawaited, and one that begins may make more.
        tasks = asyncio.all_tasks(self)
        for _ in range(100):  # tasks may create tasks without end
            self.turn(0)
            known_tasks, tasks = tasks, asyncio.all_tasks(self)
            if tasks <= known_tasks:
                break
        for task in tasks:
            task.cancel()
        tasks.add(self.begin(self.shutdown_asyncgens()))
        deadline = self.time() + CLOSE_SECONDS
        while not all(task.done() for task in tasks) and self.time() < deadline:
            self.turn(0.01)
        self.close()


@contextmanager
def loop_thread(broken: Callable[[BaseException], object] = lambda _: None) -> Iterator[EventLoop]:
    """A loop in a thread of its own, as for a command whose main thread waits for people and programs."""
    loop = EventLoop(broken)

    def run() -> None:
        loop.run_forever()
        loop.finish()

    thread = threading.Thread(target=run, name="event-loop", daemon=True)
    thread.start()
    try:
        yield loop
    finally:
        with suppress(RuntimeError):  # it has ended by itself
            loop.call_soon_threadsafe(loop.stop)
        thread.join(2 * CLOSE_SECONDS)


def run_in_thread(name: str, work: Callable[[], T], loop: asyncio.AbstractEventLoop | None = None) -> asyncio.Future[T]:
    """Run `work`, which may hang, in a daemon thread; the future of `loop`, or of the running one, gets its outcome.

    Raises BlockingIOError where no thread can be started now.
    """
    target_loop = loop or asyncio.get_running_loop()
    future: asyncio.Future[T] = target_loop.create_future()
    future.add_done_callback(_read_error)

    def settle(set_outcome: Callable[[], None]) -> None:
        if not future.cancelled():
            set_outcome()

    def run() -> None:
        try:
            set_outcome = partial(future.set_result, work())
        except StopIteration as stop:  # which no future can carry
            set_outcome = partial(future.set_exception, RuntimeError(repr(stop)))
        except BaseException as error:
            set_outcome = partial(future.set_exception, error)
        with suppress(RuntimeError):  # the loop has ended
            target_loop.call_soon_threadsafe(settle, set_outcome)

    start_thread(threading.Thread(target=run, name=name, daemon=True))
    return future


def find_path(name: str) -> str:
    """The path at which the thread of this name hangs: a local `path` of its innermost frame that has one.

    Empty without any. So code that may run in such a thread names a local `path` only if it is that.
    """
    idents = [thread.ident for thread in threading.enumerate() if thread.name == name]
    frame = sys._current_frames().get(idents[0] or 0) if idents else None
    while frame is not None:
        if (path := str(frame.f_locals.get("path"))).startswith("/"):  # or a Path
            return path
        frame = frame.f_back
    return ""


def _read_error(future: asyncio.Future[Any]) -> None:
    """Read the error, which asyncio would log otherwise."""
    if not future.cancelled():
        future.exception()
