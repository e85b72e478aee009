"""The thread that reads the container's log: each line to the story and to the journal, whatever dockerd does."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator

from sparkd.engine.forward import Forwarder
from sparkd.engine.lines import LineSplitter
from sparkd.engine.story import Story, read
from sparkd.lib.dockerd.reader import DockerUnreadableError
from sparkd.lib.log import Events

RETRY_SECONDS = 1.0

Frames = Iterator[tuple[int, bytes]]


class LogReader:
    """Follows one container's log until it ends. `story` may be read from any thread."""

    def __init__(
        self,
        follow: Callable[[float], Frames],
        forwarder: Forwarder,
        put: Callable[[int, str], None],
        events: Events,
        bell: Callable[[], None],
    ) -> None:
        """`follow(since)` opens the log (wall clock; 0: all of it), raising DockerUnreadableError.

        `bell` is rung at each step, at the first error, and when docker goes away.
        """
        self._follow = follow
        self._forwarder = forwarder
        self._put = put
        self._events = events
        self._read_at = 0.0
        self._bell = bell
        self._stop = threading.Event()
        self.story = Story(step_since=time.monotonic())
        self.broken_off_at: float | None = None
        """Monotonic, when docker last went away under the log: a dockerd that dies takes its containers along."""
        self._thread = threading.Thread(target=self._run, name="engine-log", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self, seconds: float) -> None:
        """Let it read to the end of an ended container's log, for this long at most."""
        self._stop.set()
        self._thread.join(seconds)

    def _run(self) -> None:
        told = ""
        while True:
            try:
                self._read(self._follow(self._read_at))
                ended = "the log ended"
            except DockerUnreadableError as error:
                ended = str(error)
                self.broken_off_at = time.monotonic()
                self._bell()
            if self._stop.wait(RETRY_SECONDS):
                return
            # dockerd went away under a container that lives on, or the container has ended: the main loop knows which.
            # What was written meanwhile is asked for once docker answers again.
            if ended != told:
                told = ended
                self._events.warning("engine.log.interrupted", reason=ended)

    def _read(self, frames: Frames) -> None:
        splitters = {1: LineSplitter(), 2: LineSplitter()}
        for stream, data in frames:
            self._read_at = time.time()
            if stream in splitters:
                for line in splitters[stream].feed(data):
                    self._line(line)
        for splitter in splitters.values():
            for line in splitter.flush():
                self._line(line)
        for priority, text in self._forwarder.flush():
            self._put(priority, text)

    def _line(self, line: str) -> None:
        now = time.monotonic()
        before = self.story
        self.story = read(before, line, now)
        for priority, text in self._forwarder.lines(line, now):
            self._put(priority, text)
        if (self.story.step, self.story.failing_since) != (before.step, before.failing_since):
            self._bell()
