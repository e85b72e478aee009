"""The only writer to stdout: bounded, in order, and never blocking.

A slow journal must not block the main loop (watchdog) nor the engine's log reader. Lines wait in a bounded queue; those
that do not fit are counted, and the count is written in their place. sparkd's own events are always queued: they are
few, and a person needs them.
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
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._write, name="journal", daemon=True)
        self._thread.start()

    def put(self, priority: int, text: str, *, keep: bool = False) -> None:
        """Queue one line without waiting. `keep`: never drop it, for sparkd's own events."""
        line = f"<{priority}>{text}\n".encode("utf-8", "backslashreplace")
        with self._changed:
            if self._queued_bytes + len(line) > self._capacity_bytes and not keep:
                self._dropped += 1
                return
            if self._dropped:
                self._queue_count()
            self._lines.append(line)
            self._queued_bytes += len(line)
            self._changed.notify()

    def close(self, seconds: float) -> None:
        with self._changed:
            if self._dropped:
                self._queue_count()
            self._closed = True
            self._changed.notify()
        self._thread.join(seconds)

    def _queue_count(self) -> None:
        line = f"<4>journal.lines.dropped count={self._dropped}\n".encode()
        self._lines.append(line)
        self._queued_bytes += len(line)
        self._dropped = 0

    def _batch(self) -> bytes:
        """Waits for lines; empty once the journal is closed."""
        with self._changed:
            while not self._lines and not self._closed:
                self._changed.wait()
            batch = bytearray()
            while self._lines and len(batch) < BATCH_BYTES:
                batch += self._lines.popleft()
            self._queued_bytes -= len(batch)
            return bytes(batch)

    def _write(self) -> None:
        broken = False
        while batch := self._batch():
            data = memoryview(batch)
            while data and not broken:
                try:
                    data = data[os.write(self._fd, data) :]
                except BlockingIOError:
                    time.sleep(0.01)
                except OSError:
                    broken = True  # journald is gone: continue without it, the rank matters more
