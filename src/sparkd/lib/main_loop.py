"""The main loop: every wait of the agent is made here.

During a wait it feeds systemd's watchdog (WATCHDOG=1), extends the start timeout, and handles a request to stop.
Nothing else feeds the watchdog: a main loop that hangs is ended, and a long load is not.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import threading
import time
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import Future
from types import FrameType
from typing import TYPE_CHECKING, Any, TypeVar

from sparkd.lib import start_thread
from sparkd.lib.systemd import Notifier, watchdog_seconds

if TYPE_CHECKING:
    from sparkd.lib.event_loop import EventLoop

T = TypeVar("T")

SLICE_SECONDS = 10.0
EXTEND_SECONDS = 60.0
"""Start time requested in each slice: after six missed slices systemd ends the agent."""
HANG_SECONDS = 30.0
"""For one turn of the network loop. Its longest regular step, to verify and parse a body of 8 MiB, took 0.9 s; the rest
is for a machine that is busy loading an engine. systemd's own 30 s come on top."""


class StopRequested(BaseException):
    """SIGTERM or SIGINT. It is not an Exception, so that no `except Exception` catches it."""


class MainLoop:
    """For the main thread only; `wake` and `fail` may be called from any thread."""

    def __init__(
        self,
        notifier: Notifier,
        env: Mapping[str, str],
        network: EventLoop | None = None,
        on_hang: Callable[[float], object] = lambda _: None,
        hang_seconds: float = HANG_SECONDS,
    ) -> None:
        """`on_hang` is called once with the seconds when `network` hangs for `hang_seconds`. While it hangs, the
        watchdog is not fed, and systemd ends the agent.
        """
        self._notifier = notifier
        self._network = network
        self._on_hang = on_hang
        self._hang_seconds = hang_seconds
        self._hangs = False
        self._wake_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        watched = watchdog_seconds(env)
        self._slice_seconds = min(SLICE_SECONDS, watched / 3) if watched else SLICE_SECONDS
        self._fed_at = float("-inf")
        self._extends = True
        self._stopping = False
        self._stop_signal = 0
        self._failure: BaseException | None = None
        self._checks: tuple[Callable[[], object], ...] = ()

    def listen(self) -> None:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_signal)
        # No reason to end: changed configuration is seen without it. Not SIG_IGN, which programs would inherit.
        signal.signal(signal.SIGHUP, lambda _number, _frame: None)

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        self._stop_signal = number
        self.wake()

    def add_check(self, check: Callable[[], object]) -> None:
        """Call `check` at the end of each `wait`, before the checks added earlier; its error ends the wait."""
        self._checks = (check, *self._checks)

    def extend_timeout(self, extends: bool) -> None:
        """Whether to extend systemd's timeout in each slice: at first it is, until the unit is ready."""
        self._extends = extends

    def report_ready(self) -> None:
        """Send READY=1 once; the start timeout is not extended after it."""
        if self._extends:
            self._notifier.ready()
            self._extends = False

    def report_stopping(self) -> None:
        """Send STOPPING=1 once, and extend the stop's timeout from then on. systemd sends no SIGTERM after it."""
        if not self._stopping:
            self._notifier.stopping()
        self._stopping = self._extends = True

    def wake(self) -> None:
        os.eventfd_write(self._wake_fd, 1)

    def fail(self, error: BaseException) -> None:
        """Let `wait` raise the error that ended a vital thread. The first one counts."""
        if self._failure is None:
            self._failure = error
        self.wake()

    def wait(self, seconds: float, fd: int | None = None) -> bool:
        """Wait until `seconds` have passed, the loop is woken, or `fd` is readable; True for the last.

        Raises StopRequested, the error of `fail`, and those of the checks.
        """
        ready = self._wait(seconds, fd, until_stop=True)
        if self._stop_signal:
            raise StopRequested(signal.Signals(self._stop_signal).name)
        if self._failure is not None:
            raise self._failure
        for check in self._checks:
            check()
        return ready

    def sleep_uninterruptible(self, seconds: float, done: Callable[[], bool] = lambda: False) -> None:
        """Wait until `done`, at most `seconds`, even during a stop; each wake-up calls `done` again."""
        deadline = time.monotonic() + seconds
        while not done() and (left := deadline - time.monotonic()) > 0:
            self._wait(left, None, until_stop=False)

    def wait_fd_uninterruptible(self, seconds: float, fd: int) -> bool:
        """As `wait`, but not ended by wake-ups and stop requests. Wake-ups are left to the next `wait`."""
        return self._wait(seconds, fd, until_stop=False)

    def _wait(self, seconds: float, fd: int | None, *, until_stop: bool) -> bool:
        poller = select.poll()
        if fd is not None:
            poller.register(fd, select.POLLIN)
        if until_stop or fd is None:
            poller.register(self._wake_fd, select.POLLIN)
        deadline = time.monotonic() + seconds
        while not (until_stop and (self._stop_signal or self._failure)):
            self.keepalive()
            left = deadline - time.monotonic()
            readable = {number for number, _ in poller.poll(max(0.0, min(left, self._slice_seconds)) * 1000)}
            if self._wake_fd in readable:
                os.eventfd_read(self._wake_fd)
            if fd is not None and fd in readable:
                return True
            if self._wake_fd in readable or time.monotonic() >= deadline:
                return False
        return False

    def start(self, work: Callable[[], T]) -> Future[T]:
        """Run `work`, which may hang, in a thread of its own; its end wakes the loop.

        Where no thread can be started, the result is BlockingIOError: no look this time.
        """
        future = _call(work)
        future.add_done_callback(lambda _: self.wake())
        return future

    def run_with_timeout(self, work: Callable[[], T], seconds: float, what: str) -> T:
        """The result of a call that may block (sync, docker, /proc), while the watchdog is fed.

        Raises TimeoutError when it takes longer than `seconds`; its thread is then abandoned.
        """
        return self._outcome(_call(work), seconds, what)

    def run_until_stop(self, work: Callable[[], T], seconds: float, what: str) -> T:
        """As `run_with_timeout`, but whatever ends `wait` ends it, such as a request to stop."""
        future = self.start(work)
        deadline = time.monotonic() + seconds
        while not future.done() and (left := deadline - time.monotonic()) > 0:
            self.wait(left)
        return _result(future, seconds, what)

    def submit(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Run `work` in the network's loop; its end wakes this one."""
        future = self._submit(work)
        future.add_done_callback(lambda _: self.wake())
        return future

    def result(self, work: Coroutine[Any, Any, T], seconds: float, what: str) -> T:
        """The result of `work` in the network's loop. Raises TimeoutError, and cancels `work`."""
        future = self._submit(work)
        try:
            return self._outcome(future, seconds, what)
        finally:
            future.cancel()

    def _submit(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        assert self._network is not None, "no network loop"
        return self._network.submit(work)

    def _outcome(self, future: Future[T], seconds: float, what: str) -> T:
        # A socket, not the wake-up fd: a wake-up in the meantime is news for the next `wait`. Closed by its own thread,
        # so that a call that was abandoned writes to no fd of another.
        ended, end = socket.socketpair()
        with ended:
            future.add_done_callback(lambda _: end.close())
            self.wait_fd_uninterruptible(seconds, ended.fileno())
        return _result(future, seconds, what)

    def keepalive_age(self) -> float:
        """Seconds since the last keepalive: about a slice at most, unless the main loop hangs."""
        return time.monotonic() - self._fed_at

    def keepalive(self) -> None:
        """Feed the watchdog while the network loop turns too, once a slice at most."""
        now = time.monotonic()
        if now - self._fed_at < self._slice_seconds / 2:
            return
        self._fed_at = now
        if self._network_hangs():
            return
        self._notifier.alive()
        if self._extends:
            self._notifier.extend(EXTEND_SECONDS)

    def _network_hangs(self) -> bool:
        unanswered = self._network.unanswered_seconds() if self._network is not None else 0.0
        hung, self._hangs = self._hangs, unanswered > self._hang_seconds
        if self._hangs and not hung:
            self._on_hang(unanswered)
        return self._hangs


def _call(work: Callable[[], T]) -> Future[T]:
    future: Future[T] = Future()

    def run() -> None:
        try:
            future.set_result(work())
        except BaseException as error:  # raised by Future.result
            future.set_exception(error)

    try:
        start_thread(threading.Thread(target=run, name="blocking-call", daemon=True))
    except BlockingIOError as error:
        future.set_exception(error)
    return future


def _result(future: Future[T], seconds: float, what: str) -> T:
    if not future.done():
        raise TimeoutError(f"{what} did not end within {seconds:g} s")
    return future.result()
