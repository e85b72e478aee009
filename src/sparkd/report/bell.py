"""A bell that wakes a thread which waits in a selector."""

from __future__ import annotations

import os
import threading
from contextlib import suppress


class Bell:
    """May be rung from any thread, also after `close`, when nobody hears it. `fd` is readable once it was rung."""

    def __init__(self) -> None:
        self.fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._lock = threading.Lock()
        """The number of a closed descriptor is soon another file's."""
        self._open = True

    def ring(self) -> None:
        with self._lock:
            if self._open:
                os.eventfd_write(self.fd, 1)

    def heard(self) -> bool:
        """Whether it was rung since the last call."""
        with suppress(BlockingIOError):
            return os.eventfd_read(self.fd) > 0
        return False

    def close(self) -> None:
        with self._lock:
            if self._open:
                self._open = False
                os.close(self.fd)
