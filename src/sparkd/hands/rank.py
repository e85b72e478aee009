"""A running rank, held by its container's init: known dead at once, and ended without asking docker."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from typing import Protocol

from msgspec import Struct

SECOND_TERM_SECONDS = 3.0
"""vLLM swallows a first SIGTERM during start-up and exits on the second (seen: code 130 after 6 s); while it serves,
one is enough (0.3 to 0.6 s on the head) and a second only cuts its clean-up short."""
KILL_SECONDS = 10.0
LOOK_SECONDS = 0.1
"""An engine that is ended while it starts goes on making segments until it dies."""


class Waits(Protocol):
    def outwait(self, seconds: float, fd: int) -> bool: ...


class Rank(Struct, frozen=True):
    """One container. `pidfd` becomes readable when its init ends, docker or not."""

    container_id: str
    name: str
    image_id: str
    pid: int
    pidfd: int

    def end(self, waits: Waits, grace_seconds: float, look: Callable[[], None], *, starting: bool) -> bool:
        """SIGTERM, grace, SIGKILL; whether it is gone. `look` is called ahead of each signal, and between them.

        `starting`: the engine may not heed the first SIGTERM yet.
        """
        steps = [(signal.SIGTERM, grace_seconds), (signal.SIGKILL, KILL_SECONDS)]
        if starting:
            first = min(SECOND_TERM_SECONDS, grace_seconds)
            steps[:1] = [(signal.SIGTERM, first), (signal.SIGTERM, grace_seconds - first)]
        for number, seconds in steps:
            look()
            try:
                signal.pidfd_send_signal(self.pidfd, number)
            except ProcessLookupError:
                return True
            if self._gone_within(seconds, waits, look):
                return True
        return False

    def _gone_within(self, seconds: float, waits: Waits, look: Callable[[], None]) -> bool:
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0:
            if waits.outwait(min(LOOK_SECONDS, left), self.pidfd):
                return True
            look()
        return False

    def close(self) -> None:
        os.close(self.pidfd)
