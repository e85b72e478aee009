"""The one way to stdout: bounded, in order, and never in the way of whoever writes.

A slow journal must not block the main loop (watchdog) nor the engine's log reader. Lines wait in a queue of bounded
bytes; what does not fit is counted, and the count is said in the place where the lines are missing. sparkd's own
events are kept even then: they are few, and they are what a person needs.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque

CAPACITY_BYTES = 16 << 20
"""Some 8 s of an engine that writes 20,000 lines of 100 bytes a second."""
BATCH_BYTES = 64 << 10


class Journal:
    """Lines with journald's priority prefix (sd-daemon(3): 3 error, 4 warning, 6 info) to a file descriptor."""

    def __init__(self, fd: int = 1, capacity_bytes: int = CAPACITY_BYTES) -> None:
        self._fd = fd
        self._capacity_bytes = capacity_bytes
        self._lines: deque[bytes] = deque()
        self._queued_bytes = 0
        self._dropped = 0
        self._closed = False
        self._broken = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._write, name="journal", daemon=True)
        self._thread.start()

    def put(self, priority: int, text: str, *, keep: bool = False) -> None:
        """Queue one line, never waiting. `keep` marks sparkd's own events, which are not dropped."""
        line = f"<{priority}>{text}\n".encode("utf-8", "backslashreplace")
        with self._changed:
            full = self._queued_bytes + len(line) > self._capacity_bytes
            if full and not keep:
                self._dropped += 1
                return
            if self._dropped:
                self._queue(f"<4>journal.lines.dropped count={self._dropped}\n".encode())
                self._dropped = 0
            self._queue(line)
            self._changed.notify()

    def _queue(self, line: bytes) -> None:
        self._lines.append(line)
        self._queued_bytes += len(line)

    def close(self, seconds: float) -> None:
        """Write out what is queued, for this long at most."""
        with self._changed:
            if self._dropped:
                self._queue(f"<4>journal.lines.dropped count={self._dropped}\n".encode())
                self._dropped = 0
            self._closed = True
            self._changed.notify()
        self._thread.join(seconds)

    def _batch(self) -> bytes:
        with self._changed:
            while not self._lines and not self._closed:
                self._changed.wait()
            batch = bytearray()
            while self._lines and len(batch) < BATCH_BYTES:
                batch += self._lines.popleft()
            self._queued_bytes -= len(batch)
            return bytes(batch)

    def _write(self) -> None:
        while batch := self._batch():
            if not self._broken:
                self._write_all(memoryview(batch))

    def _write_all(self, data: memoryview) -> None:
        while data:
            try:
                data = data[os.write(self._fd, data) :]
            except BlockingIOError:
                time.sleep(0.01)
            except OSError:
                # Nobody reads any more (journald gone, pipe closed): go on without a journal, the rank matters more.
                self._broken = True
                return
