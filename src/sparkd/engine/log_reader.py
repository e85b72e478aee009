"""The thread that reads the container's log, for the load progress and for the journal."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator

from sparkd.engine.lines import LineSplitter, LogForwarder
from sparkd.engine.load_progress import LoadProgress, advance_progress
from sparkd.lib.dockerd.reader import DockerError
from sparkd.lib.log import Events

RETRY_SECONDS = 1.0


class LogReader:
    """Follows one container's log. `progress` may be read from any thread."""

    def __init__(
        self,
        follow: Callable[[float], Iterator[tuple[int, bytes]]],
        forwarder: LogForwarder,
        put: Callable[[int, str], None],
        events: Events,
        wake: Callable[[], None],
    ) -> None:
        """`follow(since)` opens the log (wall clock; 0: all of it), raising DockerError.

        `wake` is called at each step, at the first error, and when docker goes away.
        """
        self._follow = follow
        self._forwarder = forwarder
        self._put = put
        self._events = events
        self._read_at = 0.0
        self._wake = wake
        self._stop = threading.Event()
        self.progress = LoadProgress(step_since=time.monotonic())
        self.broken_off_at: float | None = None
        """Monotonic, when docker last went away: the next dockerd may end the container."""
        self._thread = threading.Thread(target=self._run, name="engine-log", daemon=True)
        self.start = self._thread.start

    def stop(self, seconds: float) -> None:
        """Read to the end of an ended container's log, for at most this long."""
        self._stop.set()
        self._thread.join(seconds)

    def _run(self) -> None:
        reported = ""
        while True:
            try:
                self._read(self._follow(self._read_at))
                ended = "the log ended"
            except DockerError as error:
                ended = str(error)
                self.broken_off_at = time.monotonic()
                self._wake()
            if self._stop.wait(RETRY_SECONDS):
                return
            # Either dockerd went away, and the log continues once it answers again, or the container has ended, and the
            # main loop sees it.
            if ended != reported:
                reported = ended
                self._events.warning("engine.log.interrupted", reason=ended)

    def _read(self, frames: Iterator[tuple[int, bytes]]) -> None:
        splitters = {1: LineSplitter(), 2: LineSplitter()}
        for stream, data in frames:
            self._read_at = time.time()
            if stream in splitters:
                for line in splitters[stream].feed(data):
                    self._process_line(line)
        for splitter in splitters.values():
            for line in splitter.flush():
                self._process_line(line)
        for priority, text in self._forwarder.flush():
            self._put(priority, text)

    def _process_line(self, line: str) -> None:
        now, before = time.monotonic(), self.progress
        self.progress = advance_progress(before, line, now)
        for priority, text in self._forwarder.lines(line, now):
            self._put(priority, text)
        if (self.progress.step, self.progress.failing_since) != (before.step, before.failing_since):
            self._wake()
