"""The rank's container as a process, which ends by pidfd."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from msgspec import Struct, field

if TYPE_CHECKING:
    from sparkd.base.lib.main_loop import MainLoop

SECOND_TERM_SECONDS = 3.0
"""vLLM swallows a first SIGTERM during start-up and exits on the second (seen: code 130 after 6 s); while it serves,
one is enough (0.3 to 0.6 s on the head) and a second only cuts its clean-up short."""
LOOK_SECONDS = 0.1
"""Pause between two calls of `observe`: a starting engine still makes segments between SIGTERM and its end."""


class Rank(Struct, frozen=True):
    """One container. `pidfd`, for the main loop alone, becomes readable when its init ends, also without docker."""

    container_id: str
    name: str
    image_id: str
    pid: int
    pidfd: int
    start_time: int = 0
    """Start of its init, in clock ticks since boot."""
    started_at: str = ""
    """The same as docker's time."""
    removed_kernels: int = 0
    """Cut files of kernels that were removed before its start."""
    ended: threading.Event = field(default_factory=threading.Event)
    """Set by the main loop when the init ends, once `watch` was called."""

    def watch(self, loop: MainLoop) -> None:
        loop.watch_exit(self.pidfd, self.ended.set)

    def end(self, loop: MainLoop, grace_seconds: float, observe: Callable[[], None], *, starting: bool) -> bool:
        """End it by SIGTERM, grace, SIGKILL. Returns whether it is gone.

        `observe` is called before each signal and between them. `starting`: the engine may swallow the first SIGTERM,
        so it gets a second.
        """
        first_seconds = min(SECOND_TERM_SECONDS, grace_seconds)
        term_seconds = (first_seconds, grace_seconds - first_seconds) if starting else (grace_seconds,)
        for number, seconds in (*((signal.SIGTERM, seconds) for seconds in term_seconds), (signal.SIGKILL, 10.0)):
            observe()
            try:
                signal.pidfd_send_signal(self.pidfd, number)
            except ProcessLookupError:
                return True
            deadline = time.monotonic() + seconds
            while (left_seconds := deadline - time.monotonic()) > 0:
                if loop.wait_until(self.ended.is_set, min(LOOK_SECONDS, left_seconds), shielded=True):
                    return True
                observe()
        return False

    def close(self, loop: MainLoop) -> None:
        loop.unwatch_exit(self.pidfd)
        os.close(self.pidfd)


def open_ended_pidfd() -> int:
    """Open a pidfd of some process that has ended, since the rank's own can't be opened any more."""
    process = subprocess.Popen(("/bin/true",))
    pidfd = os.pidfd_open(process.pid)
    process.wait()
    return pidfd
