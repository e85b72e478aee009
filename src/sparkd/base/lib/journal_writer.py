"""The only writer to stdout, which is the journal.

A slow journal must not block the main loop (watchdog) nor the engine's log reader. Lines wait in a bounded queue; those
that do not fit are counted, and the count is written in their place. sparkd's own events have as much room again: they
are few, and a person needs them.
"""

import math
import os
import threading
import time
from collections import deque
from collections.abc import Callable

from sparkd.base.lib import start_thread

CAPACITY_BYTES = 16 << 20
"""Some 8 s of an engine that writes 20,000 lines of 100 bytes a second."""


class Journal:
    """Lines with journald's priority prefix (sd-daemon(3): 3 error, 4 warning, 6 info) to a file descriptor."""

    def __init__(self, fd: int, capacity_bytes: int = CAPACITY_BYTES) -> None:
        self._fd = fd
        self._capacity_bytes = capacity_bytes
        self._lines: deque[bytes] = deque()
        self._queued_bytes = 0
        self._dropped = 0
        self._closed = False
        self._written_bytes = 0
        self._accepted = self._taken = self._handled = 0
        """Lines so far: queued, taken from the queue, and written or given up."""
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._write, name="journal", daemon=True)
        start_thread(self._thread)  # raises BlockingIOError

    def put(self, priority: int, text: str, *, keep: bool = False) -> None:
        """Queue one line without waiting. `keep`: for sparkd's own events, which have twice the room."""
        line = f"<{priority}>{text}\n".encode("utf-8", "backslashreplace")
        with self._changed:
            if self._queued_bytes + len(line) > (2 if keep else 1) * self._capacity_bytes:
                self._dropped += 1
                return
            self._append_count()
            self._append(line)
            self._changed.notify()

    def checkpoint(self) -> Callable[[], bool]:
        """A function that says whether all lines queued so far are written or given up."""
        with self._changed:
            accepted = self._accepted
        return lambda: self._handled >= accepted

    def close(self, seconds: float, patience_seconds: float = math.inf) -> None:
        """Write what is queued, for at most `seconds`; give up once nothing could be written for `patience_seconds`."""
        with self._changed:
            self._append_count()
            self._closed = True
            self._changed.notify()
        deadline, written_bytes = time.monotonic() + seconds, -1
        while self._thread.is_alive() and written_bytes != self._written_bytes and time.monotonic() < deadline:
            written_bytes = self._written_bytes
            self._thread.join(min(patience_seconds, deadline - time.monotonic()))

    def _append_count(self) -> None:
        """Queue the number of dropped lines in their place, if there are any."""
        if self._dropped:
            self._append(f"<4>journal.lines.dropped count={self._dropped}\n".encode())
            self._dropped = 0

    def _append(self, line: bytes) -> None:
        self._lines.append(line)
        self._accepted += 1
        self._queued_bytes += len(line)

    def _take_batch(self) -> bytes:
        """Wait for lines, and take up to some 64 KiB of them; empty once the journal is closed."""
        with self._changed:
            self._handled = self._taken
            while not self._lines and not self._closed:
                self._changed.wait()
            batch = bytearray()
            while self._lines and len(batch) < (64 << 10):
                batch += self._lines.popleft()
                self._taken += 1
            self._queued_bytes -= len(batch)
            return bytes(batch)

    def _write(self) -> None:
        is_broken = False
        while batch := self._take_batch():
            unwritten = memoryview(batch)
            while unwritten and not is_broken:
                try:
                    written_bytes = os.write(self._fd, unwritten)
                    unwritten = unwritten[written_bytes:]
                    self._written_bytes += written_bytes
                except BlockingIOError:
                    time.sleep(0.01)
                except OSError:
                    is_broken = True  # journald is gone: continue without it, the rank matters more
