"""The main loop's heartbeat: every wait of the agent goes through here.

While it waits it tells systemd that the main loop lives (WATCHDOG=1), asks for more start time, and notices a request
to stop. Nobody else feeds the watchdog, so a main loop that hangs is ended, and a long load is not.
"""

from __future__ import annotations

import os
import select
import signal
import threading
import time
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import Future
from types import FrameType
from typing import TYPE_CHECKING, Any, TypeVar

from sparkd.systemd import Notifier, watchdog_seconds

if TYPE_CHECKING:
    from sparkd.lib.event_loop import EventLoop

T = TypeVar("T")

SLICE_SECONDS = 10.0
EXTEND_SECONDS = 60.0
"""How far ahead start time is asked for: six missed slices mean that the main loop hangs."""
HANG_SECONDS = 30.0
"""For the network loop to turn. Its longest regular step, to verify and parse a body of 8 MiB, took 0.9 s; the rest is
for a machine whose processors and disks are busy with loading an engine. systemd's own 30 s come on top."""


class StopRequested(BaseException):
    """SIGTERM or SIGINT: a person or systemd wants the agent to end. Not an error, so no `except Exception` eats it."""


class Pulse:
    """Waiting that stays alive. For the main thread only; `ring` and `fail` may be called from anywhere."""

    def __init__(
        self,
        notifier: Notifier,
        env: Mapping[str, str],
        network: EventLoop | None = None,
        on_hang: Callable[[float], object] = lambda _: None,
        hang_seconds: float = HANG_SECONDS,
    ) -> None:
        """`on_hang` is called once when `network` has not turned for `hang_seconds`, with the seconds. As long as it
        does not turn, systemd gets no sign of life, and ends the agent.
        """
        self._notifier = notifier
        self._network = network
        self._on_hang = on_hang
        self._hang_seconds = hang_seconds
        self._hangs = False
        self._bell = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        watched = watchdog_seconds(env)
        self._slice_seconds = min(SLICE_SECONDS, watched / 3) if watched else SLICE_SECONDS
        self._fed = float("-inf")
        self._stop_signal = 0
        self._failure: BaseException | None = None
        self.guard: Callable[[], object] = lambda: None
        """Called at the end of each `wait`: what it raises ends the life that waits."""
        self.extending = True
        """Ask systemd for more time in each slice: set until READY, and again while stopping."""

    def listen(self) -> None:
        """Take SIGTERM and SIGINT as requests to stop, from now on."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_signal)

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        self._stop_signal = number
        self.ring()

    def ring(self) -> None:
        """End the current wait early."""
        os.eventfd_write(self._bell, 1)

    def fail(self, error: BaseException) -> None:
        """A thread that the agent can't do without has died of this: end the life that waits. The first one counts."""
        if self._failure is None:
            self._failure = error
        self.ring()

    def wait(self, seconds: float, fd: int | None = None) -> bool:
        """Wait until `seconds` have passed, the bell rings, or `fd` is readable; True for the last.

        Raises StopRequested when a stop was asked for, what a thread died of, and what the guard raises.
        """
        ready = self._wait(seconds, fd, until_stop=True)
        if self._stop_signal:
            raise StopRequested(signal.Signals(self._stop_signal).name)
        if self._failure is not None:
            raise self._failure
        self.guard()
        return ready

    def linger(self, seconds: float, done: Callable[[], bool] = lambda: False) -> None:
        """Wait until `done`, for so long at most, through requests to stop; the bell makes it look again."""
        deadline = time.monotonic() + seconds
        while not done() and (left := deadline - time.monotonic()) > 0:
            self._wait(left, None, until_stop=False)

    def outwait(self, seconds: float, fd: int) -> bool:
        """Wait for `fd` as `wait` does, but through bell and stop requests: for stopping itself."""
        return self._wait(seconds, fd, until_stop=False)

    def _wait(self, seconds: float, fd: int | None, *, until_stop: bool) -> bool:
        poller = select.poll()
        poller.register(self._bell, select.POLLIN)
        if fd is not None:
            poller.register(fd, select.POLLIN)
        deadline = time.monotonic() + seconds
        while not (until_stop and (self._stop_signal or self._failure)):
            self.beat()
            left = deadline - time.monotonic()
            rung = {number for number, _ in poller.poll(max(0.0, min(left, self._slice_seconds)) * 1000)}
            if self._bell in rung:
                os.eventfd_read(self._bell)
            if fd is not None and fd in rung:
                return True
            # Who outwaits an fd is stopping, and every further request to stop rings the bell.
            if self._bell in rung and (until_stop or fd is None):
                return False
            if time.monotonic() >= deadline:
                return False
        return False

    def start(self, work: Callable[[], T]) -> Future[T]:
        """Run `work` in a thread of its own, which may take for ever; the bell rings when it is done."""
        future: Future[T] = Future()

        def run() -> None:
            try:
                future.set_result(work())
            except BaseException as error:  # handed to whoever asks for the result
                future.set_exception(error)
            self.ring()

        threading.Thread(target=run, name="beside", daemon=True).start()
        return future

    def beside(self, work: Callable[[], T], seconds: float, what: str) -> T:
        """The result of a call that may block (sync, docker, a look at /proc), while the main loop stays alive.

        Raises TimeoutError, in words, when it takes longer than `seconds`; the call is then left to itself.
        """
        return self._outcome(self.start(work), seconds, what)

    def submit(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Run `work` in the network's loop; the bell rings when it is done."""
        assert self._network is not None, "made without a network"
        future = self._network.submit(work)
        future.add_done_callback(lambda _: self.ring())
        return future

    def result(self, work: Coroutine[Any, Any, T], seconds: float, what: str) -> T:
        """The result of `work` in the network's loop. Raises TimeoutError as `beside` does, and cancels `work`."""
        future = self.submit(work)
        try:
            return self._outcome(future, seconds, what)
        finally:
            future.cancel()

    def _outcome(self, future: Future[T], seconds: float, what: str) -> T:
        self.linger(seconds, future.done)
        if not future.done():
            raise TimeoutError(f"{what} did not end within {seconds:g} s")
        return future.result()

    def beat_age(self) -> float:
        """Seconds since the main loop last said that it lives: about a slice at most, while it does."""
        return time.monotonic() - self._fed

    def beat(self) -> None:
        """Say that the main loop and the network's live, once a slice at most."""
        now = time.monotonic()
        if now - self._fed < self._slice_seconds / 2:
            return
        self._fed = now
        if self._network_hangs():
            return
        self._notifier.alive()
        if self.extending:
            self._notifier.extend(EXTEND_SECONDS)

    def _network_hangs(self) -> bool:
        unanswered = self._network.unanswered_seconds() if self._network is not None else 0.0
        hung, self._hangs = self._hangs, unanswered > self._hang_seconds
        if self._hangs and not hung:
            self._on_hang(unanswered)
        return self._hangs
