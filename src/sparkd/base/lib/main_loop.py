"""The main loop: every wait of the agent is made here, and turns the one event loop, which has all of its networking.

A step of a run is plain code. Between two waits nothing else happens in this thread. During a wait the other nodes are
read and answered, systemd's watchdog is fed (WATCHDOG=1), the start timeout is extended, and what ends the run is
raised. Nothing else feeds the watchdog: a main loop that hangs is ended, and a long load is not.

    wait        waits for time or news
    wait_until  waits for a condition
    beside      waits for a call that may hang, which runs in a thread, or for a coroutine
    start       begins such a call or coroutine without waiting: its end is news
"""

import signal
import time
from asyncio import Future
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from functools import partial
from types import FrameType
from typing import Any, Protocol, Self, TypeVar

from sparkd.base.lib.endings import Endings
from sparkd.base.lib.event_loop import EventLoop, find_path, run_in_thread
from sparkd.base.lib.systemd import Notifier, watchdog_seconds
from sparkd.base.lib.text import sanitize

T = TypeVar("T")
Result = TypeVar("Result", covariant=True)
Work = Callable[[], T] | Coroutine[Any, Any, T]
"""A call that may hang, or a coroutine."""

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
SLICE_SECONDS = 10.0
STILL_SECONDS = 2.0
"""Longer than any step between two waits, on a machine that is not starved."""


class Outcome(Protocol[Result]):
    """The outcome of work that `start` has begun."""

    def done(self) -> bool: ...

    def result(self) -> Result:
        """Once it is done. Raises what the work has raised."""

    def cancel(self) -> object:
        """End a coroutine that is not done. A thread continues."""


def never() -> bool:
    """Let `wait_until` wait for its whole time, through all news."""
    return False


class MainLoop:
    """The loop of the main thread. Any thread may call `wake`."""

    def __init__(self, notifier: Notifier, env: Mapping[str, str]) -> None:
        self._notifier = notifier
        self.endings = Endings()
        """What ends each wait from here on."""
        self._loop = EventLoop(self._fail)
        self._news = False
        watched = watchdog_seconds(env)
        self._slice_seconds = min(SLICE_SECONDS, watched / 3) if watched else SLICE_SECONDS
        self._fed_at = float("-inf")
        self._extends = True
        self._stopping = False
        self._reload_requested = False
        self._turned_at = time.monotonic()
        self.resumed_at = float("-inf")
        """Monotonic time of the last turn after the loop had stood still, when no other node could be heard."""
        self._under_way: dict[str, Future[Any]] = {}
        """The call in a thread that has not ended, by its subject (`what`)."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End all tasks. Calls in threads are left alone: they may hang."""
        self._loop.finish()

    def listen(self) -> None:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._handle_signal)
        # Not SIG_IGN, which programs would inherit.
        signal.signal(signal.SIGHUP, self._handle_hangup)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)  # after a reload

    def _handle_signal(self, number: int, _frame: FrameType | None) -> None:
        self.endings.request_stop(number)
        self.wake()

    def _handle_hangup(self, _number: int, _frame: FrameType | None) -> None:
        self._reload_requested = True
        self.wake()

    def take_reload_request(self) -> bool:
        """Whether there was a SIGHUP since the last call that returned true."""
        was_requested = self._reload_requested
        if was_requested:  # else one that comes here would be lost
            self._reload_requested = False
        return was_requested

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Run `work`, which never ends by itself, during the waits. Its end, or its error, ends the run."""
        self._loop.spawn(work)

    def _fail(self, error: BaseException) -> None:
        self.endings.fail(error)
        self._note_news()

    def watch_exit(self, pidfd: int, on_exit: Callable[[], object]) -> None:
        """Call `on_exit` in the first wait after the process has ended, which is news; not after `unwatch_exit`."""
        self._loop.add_reader(pidfd, self._report_exit, pidfd, on_exit)

    def unwatch_exit(self, pidfd: int) -> None:
        self._loop.remove_reader(pidfd)

    def _report_exit(self, pidfd: int, on_exit: Callable[[], object]) -> None:
        self.unwatch_exit(pidfd)
        on_exit()
        self._note_news()

    def extend_timeout(self, extends: bool) -> None:
        """Set whether systemd's timeout is extended in each slice, as it is from the start until the unit is ready."""
        self._extends = extends

    def report_ready(self) -> None:
        """Send READY=1 once; the start timeout is not extended after it."""
        if self._extends:
            self._notifier.send("READY=1")
            self._extends = False

    def report_stopping(self) -> None:
        """Send STOPPING=1 once, and extend the stop's timeout from then on. systemd sends no SIGTERM after it."""
        if not self._stopping:
            self._notifier.send("STOPPING=1")
        self._stopping = self._extends = True

    def wake(self) -> None:
        """Report news: the present wait checks what may end the run, and returns."""
        # Also in a signal's handler, as asyncio does itself for SIGINT.
        with suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self._note_news)

    def _note_news(self, _ended: object = None) -> None:
        self._news = True
        self._loop.stop()

    def wait(self, seconds: float) -> None:
        """Wait until `seconds` have passed, or there is news.

        Raises what ends the present stage: StopRequested, the error of a task, or that of an ending.
        """
        deadline, news = time.monotonic() + seconds, False
        while not (news or self.endings.urgent):
            news = self._turn(deadline, shielded=True) or time.monotonic() >= deadline
        self.endings.raise_first()

    def wait_until(self, done: Callable[[], bool], seconds: float, *, shielded: bool = False) -> bool:
        """Wait until `done`, which is called again at all news, for `seconds` at most. Returns whether it is done.

        Raises as `wait`, unless `shielded`, as waits are while the machine is changed.
        """
        deadline, turned = time.monotonic() + seconds, False
        while not (is_done := done()) and not (turned and time.monotonic() >= deadline):
            self._turn(deadline, shielded)
            turned = True
        return is_done

    def start(self, work: Work[T], what: str = "", then: Callable[[Outcome[T]], object] = lambda _: None) -> Outcome[T]:
        """Run `work` as a task, or in a thread of its own; its end is news. `then` gets the outcome, in the loop: its
        error ends the run.

        A subject, `what`, has one call at a time. Where an earlier one has not ended, and where no thread can be
        started, the outcome is a BlockingIOError: nothing was called this time.
        """
        future = self._begin(work, what)
        future.add_done_callback(partial(self._call_back, then))
        future.add_done_callback(self._note_news)
        return future

    def _call_back(self, then: Callable[[Outcome[T]], object], outcome: Outcome[T]) -> None:
        try:
            then(outcome)
        except Exception as error:
            self._fail(error)

    def beside(self, work: Work[T], seconds: float, what: str, *, shielded: bool = False) -> T:
        """The result of work that may hang (sync, docker, /proc), while the loop turns.

        A subject, `what`, has one call at a time: an earlier one is awaited first. Raises TimeoutError, with the path
        that the thread is at, after `seconds`: the thread is then abandoned, a coroutine cancelled. Raises as `wait`
        too, unless `shielded`, as waits are while the machine is changed.
        """
        deadline = time.monotonic() + seconds
        earlier = None if isinstance(work, Coroutine) else self._under_way.get(what)
        is_free = earlier is None or self._await(earlier, deadline, shielded)
        future = self._begin(work, what) if is_free else None
        try:
            if future is None or not self._await(future, deadline, shielded):
                place = f": it is at {sanitize(path)}" if (path := find_path(what)) else ""
                raise TimeoutError(f"{what} did not end within {seconds:g} s{place}")
        finally:
            if future is not None and isinstance(work, Coroutine):
                future.cancel()
        return future.result()

    def _await(self, future: Future[T], deadline: float, shielded: bool) -> bool:
        """Turn the loop until the future is done, and return whether it is. Its end is no news for the next `wait`."""
        future.add_done_callback(lambda _: self._loop.stop())
        news = False
        try:
            while not future.done() and time.monotonic() < deadline:
                news = self._turn(deadline, shielded) or news
        finally:
            self._news = self._news or news
        return future.done()

    def _begin(self, work: Work[T], what: str) -> Future[T]:
        if isinstance(work, Coroutine):
            return self._loop.begin(work)
        try:
            if what in self._under_way and not self._under_way[what].done():
                raise BlockingIOError(f"{what} has not ended")
            future = run_in_thread(what or "call", work, self._loop)
            if what:
                self._under_way[what] = future
                future.add_done_callback(partial(self._note_end, what))
        except BlockingIOError as error:
            future = self._loop.create_future()
            future.set_exception(error)
            future.exception()  # read here: asyncio logs an error that nobody reads
        return future

    def _note_end(self, what: str, call: Future[Any]) -> None:
        if self._under_way.get(what) is call:
            del self._under_way[what]

    def _turn(self, deadline: float, shielded: bool) -> bool:
        """Turn the event loop until there is news, for one slice at most. Returns whether there was news.

        Raises what ends the present stage, unless `shielded`.
        """
        self.keepalive()
        must_return = self._news or (self.endings.urgent and not shielded)
        began_at = time.monotonic()
        seconds = 0.0 if must_return else max(0.0, min(deadline - began_at, self._slice_seconds))
        stood_still = began_at - self._turned_at
        self._loop.turn(seconds)
        self._turned_at = time.monotonic()
        if max(stood_still, self._turned_at - began_at - seconds) > STILL_SECONDS:
            self.resumed_at = self._turned_at
        news, self._news = self._news, False
        if shielded:
            self.endings.look()
        else:
            self.endings.raise_first()
        return news

    def keepalive_age(self) -> float:
        """Seconds since the last keepalive: about a slice at most, unless the main loop hangs."""
        return time.monotonic() - self._fed_at

    def keepalive(self) -> None:
        """Feed the watchdog, once a slice at most."""
        now = time.monotonic()
        if now - self._fed_at < self._slice_seconds / 2:
            return
        self._fed_at = now
        self._notifier.send("WATCHDOG=1")
        if self._extends:
            self._notifier.send("EXTEND_TIMEOUT_USEC=60000000")  # after six missed slices systemd ends the agent
