"""The main loop: every wait of the agent is made here.

During a wait it feeds systemd's watchdog (WATCHDOG=1), extends the start timeout, and raises what ends the run.
Nothing else feeds the watchdog: a main loop that hangs is ended, and a long load is not.

    wait        for time, news or a file descriptor
    wait_until  for a condition
    beside      for a call that may hang, in a thread, or for a coroutine of the network
    start       does not wait: the same, whose end is news
"""

from __future__ import annotations

import os
import select
import signal
import socket
import threading
import time
from collections.abc import Callable, Coroutine, Iterable, Mapping
from concurrent.futures import Future
from enum import IntEnum
from types import FrameType
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from sparkd.lib import start_thread
from sparkd.lib.systemd import Notifier, watchdog_seconds

if TYPE_CHECKING:
    from sparkd.lib.event_loop import EventLoop

T = TypeVar("T")
Work = Callable[[], T] | Coroutine[Any, Any, T]
"""A call that may hang, or a coroutine for the network's loop."""

SLICE_SECONDS = 10.0
EXTEND_SECONDS = 60.0
"""Start time requested in each slice: after six missed slices systemd ends the agent."""
HANG_SECONDS = 30.0
"""For one turn of the network loop. Its longest regular step, to verify and parse a body of 8 MiB, took 0.9 s; the rest
is for a machine that is busy loading an engine. systemd's own 30 s come on top."""


class Stage(IntEnum):
    """How far a run is, by what may still end its waits."""

    RUN = 0
    """Every ending."""
    INQUEST = 1
    """Of an engine that ended, and of one that drains: a stop, a bug, and the endings that count until here."""
    END = 2
    """Nothing: the rank is stopped, and the last report is read."""


def never() -> bool:
    """Let `wait_until` wait for its whole time, through all news."""
    return False


class Ending(NamedTuple):
    """`raise_if` raises the error that ends the run, where there is one. It counts up to and in the stage `until`."""

    raise_if: Callable[[], object]
    until: Stage = Stage.RUN


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
        self._stage = Stage.RUN
        self._endings: tuple[Ending, ...] = ()
        self._exits: dict[int, Callable[[], object]] = {}
        """What to call once a process has ended, by its pidfd."""

    def listen(self) -> None:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_signal)
        # No reason to end: changed configuration is seen without it. Not SIG_IGN, which programs would inherit.
        signal.signal(signal.SIGHUP, lambda _number, _frame: None)

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        self._stop_signal = number
        self.wake()

    def end_by(self, *endings: Ending) -> None:
        """From now on these end a wait, after a stop and a thread's bug; of several, the first in order."""
        self._endings = endings

    def enter(self, stage: Stage) -> None:
        self._stage = stage

    def watch_exit(self, pidfd: int, on_exit: Callable[[], object]) -> None:
        """Call `on_exit` in the first wait after the process has ended; that is news. Until `unwatch_exit`."""
        self._exits[pidfd] = on_exit

    def unwatch_exit(self, pidfd: int) -> None:
        self._exits.pop(pidfd, None)

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
        """Report news: a wait returns, and looks at what may end the run."""
        os.eventfd_write(self._wake_fd, 1)

    def fail(self, error: BaseException) -> None:
        """Let `wait` raise the error that ended a vital thread. The first one counts."""
        if self._failure is None:
            self._failure = error
        self.wake()

    def wait(self, seconds: float, fd: int | None = None) -> bool:
        """Wait until `seconds` have passed, there is news, or `fd` is readable; True for the last.

        Raises what ends the present stage: StopRequested, the error of `fail`, or that of an ending.
        """
        deadline = time.monotonic() + seconds
        ready, news = False, self._stopped
        while not (ready or news):
            ready, news = self._poll(deadline, fd)
            if time.monotonic() >= deadline:
                break
        self._raise_ending()
        return ready

    def wait_until(self, done: Callable[[], bool], seconds: float, *, shielded: bool = False) -> bool:
        """Wait until `done`, which is called again at all news, at most `seconds`; whether it is.

        Raises as `wait`, unless `shielded`, as what changes the machine is.
        """
        deadline = time.monotonic() + seconds
        while not (is_done := done()) and time.monotonic() < deadline:
            self._poll(deadline)
            if not shielded:
                self._raise_ending()
        return is_done

    def start(self, work: Work[T]) -> Future[T]:
        """Run `work` in a thread of its own, or in the network's loop; its end is news.

        Where no thread can be started, the result is BlockingIOError: no look this time.
        """
        future = self._begin(work)
        future.add_done_callback(lambda _: self.wake())
        return future

    def beside(self, work: Work[T], seconds: float, what: str, *, shielded: bool = False) -> T:
        """The result of work that may hang (sync, docker, /proc), while the watchdog is fed.

        Raises TimeoutError when it takes longer than `seconds`: a thread is then abandoned, a coroutine cancelled.
        Raises as `wait` too, unless `shielded`, as what changes the machine is.
        """
        future = self._begin(work)
        # A socket, not the wake-up fd: its own end is no news for the next `wait`. Closed by the thread that ends, so
        # that a call that was abandoned writes to no fd of another.
        ended, end = socket.socketpair()
        deadline, news = time.monotonic() + seconds, False
        with ended:
            future.add_done_callback(lambda _: end.close())
            try:
                while not future.done() and time.monotonic() < deadline:
                    news = self._poll(deadline, ended.fileno())[1] or news
                    if not shielded:
                        self._raise_ending()
            finally:
                done = future.done()
                future.cancel()
                if news:
                    self.wake()
        if not done:
            raise TimeoutError(f"{what} did not end within {seconds:g} s")
        return future.result()

    def _begin(self, work: Work[T]) -> Future[T]:
        if isinstance(work, Coroutine):
            assert self._network is not None, "no network loop"
            return self._network.submit(work)
        return _call(work)

    def _poll(self, deadline: float, fd: int | None = None) -> tuple[bool, bool]:
        """One slice of a wait: whether `fd` is readable, and whether there is news."""
        self.keepalive()
        poller = select.poll()
        for number in (self._wake_fd, *self._exits, *(() if fd is None else (fd,))):
            poller.register(number, select.POLLIN)
        left = deadline - time.monotonic()
        readable = {number for number, _ in poller.poll(max(0.0, min(left, self._slice_seconds)) * 1000)}
        if self._wake_fd in readable:
            os.eventfd_read(self._wake_fd)
        self._report_exits(readable)
        return fd in readable, bool(readable - {fd})

    def _report_exits(self, readable: Iterable[int]) -> None:
        for pidfd in [number for number in readable if number in self._exits]:
            self._exits.pop(pidfd)()

    @property
    def _stopped(self) -> bool:
        return self._stage is not Stage.END and bool(self._stop_signal or self._failure)

    def _raise_ending(self) -> None:
        """A stop and a bug first, then the endings that count in this stage, in their order."""
        if self._stage is Stage.END:
            return
        if self._stop_signal:
            raise StopRequested(signal.Signals(self._stop_signal).name)
        if self._failure is not None:
            raise self._failure
        for ending in self._endings:
            if ending.until >= self._stage:
                ending.raise_if()

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
    future.set_running_or_notify_cancel()  # from here on nobody can cancel it: a thread can't be

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
