"""The thread that follows the log of a rank's container, forwards it to the journal, and parses the load's progress."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress

from msgspec import Struct, field
from msgspec.structs import replace

from sparkd.agent.engine.load_progress import LoadProgress, advance_progress
from sparkd.agent.engine.log_position import LogPosition
from sparkd.base.lib import start_thread
from sparkd.base.lib.dockerd.reader import DockerError, since_of
from sparkd.base.lib.log import Events
from sparkd.base.vllm.log_lines import LineSplitter, LogForwarder


class LogReader(Struct):
    """Follows one container's log."""

    follow: Callable[[str], Iterator[tuple[int, bytes]]]
    """`follow(since)` opens the log as `dockerd.reader.follow_log`, raising DockerError."""
    forwarder: LogForwarder
    put: Callable[[int, str], None]
    events: Events
    wake: Callable[[], None]
    """Called at each step, at the first error, and when docker goes away."""
    since: str = "0"
    position: LogPosition = field(default_factory=LogPosition)
    progress: LoadProgress = field(default_factory=lambda: LoadProgress(step_since=time.monotonic()))
    """Any thread may read it."""
    broken_off_at: float | None = None
    """When the log last broke off, monotonic, as docker went away: the next dockerd may end the container."""
    _last: bytes = b""
    """The piece of log that was read last, with its time stamp."""
    _failures: set[str] = field(default_factory=set)
    _kernels: set[str] = field(default_factory=set)
    _serving: bool = False
    _stop: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread = field(default_factory=threading.Thread)

    def start(self) -> None:
        """Raises BlockingIOError where there can be no more threads."""
        self._thread = threading.Thread(target=self._run, name="engine-log", daemon=True)
        start_thread(self._thread)

    def begin_serving(self) -> None:
        """Note that from now on a client's text may begin a line."""
        self._serving = True

    def resume(self, sources: frozenset[str]) -> None:
        """Take up an engine that serves, with the sources that an earlier process has seen. Comes before `start`."""
        self.begin_serving()
        self.progress = replace(self.progress, serving=True, sources=sources)

    def stop(self, seconds: float) -> None:
        """Read to the end of an ended container's log, for at most this long."""
        self._stop.set()
        with suppress(RuntimeError):  # it was never started
            self._thread.join(seconds)

    def _run(self) -> None:
        reported = ""
        while True:
            try:
                with suppress(ValueError):  # nothing is read yet
                    self.since = since_of(self._last)
                self._read(self.follow(self.since))
                reason = "the log ended"
            except DockerError as error:
                reason = str(error)
                self.broken_off_at = time.monotonic()
                self.wake()
            if self._stop.wait(1.0):
                return
            # Either dockerd went away, and the log continues once it answers again, or the container has ended, and the
            # main loop sees it.
            if reason != reported:
                reported = reason
                self.events.warning("engine.log.interrupted", reason=reason)

    def _read(self, frames: Iterator[tuple[int, bytes]]) -> None:
        """Read pieces, each with its stream. Where the log had broken off, the first one repeats the last piece."""
        splitters = {1: LineSplitter(), 2: LineSplitter()}
        last_piece = self._last
        for stream, piece in frames:
            is_repeated, last_piece, self._last = piece == last_piece, b"", piece
            if stream in splitters and not is_repeated:
                serving = self._serving or self.progress.serving
                for line in splitters[stream].feed(piece.partition(b" ")[2], serving=serving):
                    self._process_line(stream, line)
            self.position.advance(piece)
        for stream, splitter in splitters.items():
            for line in splitter.flush():
                self._process_line(stream, line)
        for priority, text in self.forwarder.flush():
            self.put(priority, text)

    def _process_line(self, stream: int, line: str) -> None:
        now, before = time.monotonic(), self.progress
        if self._serving and not before.serving:
            before = replace(before, serving=True)
        try:
            self.progress = advance_progress(before, line, now, stream)
            for priority, text in self.forwarder.forward(line, now, serving=before.serving):
                self.put(priority, text)
        except Exception as error:  # a line that sparkd can't parse must not end the reading of the next ones
            self._report_failure(f"{type(error).__name__}: {error}")
        if self.progress.compiled != before.compiled:
            self._report_kernel(self.progress.kernel)
        after = self.progress
        if (after.step, after.failing_since, after.compiled) != (before.step, before.failing_since, before.compiled):
            self.wake()

    def _report_kernel(self, kernel: str) -> None:
        """Report each kernel once, and few dozens: many shapes of one may be compiled."""
        if kernel not in self._kernels and len(self._kernels) < 32:
            self._kernels.add(kernel)
            reason = "inside a request, which waited for it; or loaded from its cache for the first time"
            self.events.info("engine.kernel.compiled", kernel=kernel, reason=reason, hint="nothing is to be done")

    def _report_failure(self, reason: str) -> None:
        """Report five different ones: a client that can cause such a line can cause many."""
        if reason not in self._failures and len(self._failures) < 5:
            self._failures.add(reason)
            self.events.error("engine.log.failed", reason=reason, hint="reading continues; please report this")
