"""Ends processes by pidfd, a rank or a stray; and requests the end of all, a reboot."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from msgspec import Struct, field

from sparkd.agent.preflight.fixes import Applied, EndProcess
from sparkd.base.host.cgroups import read_group
from sparkd.base.host.files import Files
from sparkd.base.host.processes import GONE, read_process
from sparkd.base.lib.text import sanitize

if TYPE_CHECKING:
    from sparkd.base.lib.main_loop import MainLoop

GRACE_SECONDS = 5.0
"""Time between SIGTERM and SIGKILL of a stray. It has lost its leader, so nothing is lost with it; a worker's own
shutdown takes 4 to 5 s.
"""
KILL_SECONDS = 5.0
"""Limit for a process to end after SIGKILL."""
SECOND_TERM_SECONDS = 3.0
"""vLLM swallows a first SIGTERM during start-up and exits on the second (seen: code 130 after 6 s); while it serves,
one is enough (0.3 to 0.6 s on the head) and a second only cuts its clean-up short."""
REBOOT_SECONDS = 20.0
"""Limit for systemd to take the request."""
LOOK_SECONDS = 0.1
"""Pause between two calls of `observe`: a starting engine still makes segments between SIGTERM and its end."""


class Rank(Struct):
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
    """Empty files of kernels that were removed before its start."""
    ended: threading.Event = field(default_factory=threading.Event)
    """Set by the main loop when the init ends, once `watch` was called."""

    def watch(self, loop: MainLoop) -> None:
        loop.watch_exit(self.pidfd, self.ended.set)

    def end(self, loop: MainLoop, grace_seconds: float, observe: Callable[[], None], *, starting: bool) -> bool:
        """End it by SIGTERM, grace, SIGKILL. Returns whether it is gone.

        `observe` is called before each signal and between them. `starting`: the engine may swallow the first SIGTERM,
        so it gets a second.
        """
        signals = [(signal.SIGTERM, grace_seconds), (signal.SIGKILL, 10.0)]
        if starting:
            first_seconds = min(SECOND_TERM_SECONDS, grace_seconds)
            signals[:1] = [(signal.SIGTERM, first_seconds), (signal.SIGTERM, grace_seconds - first_seconds)]
        for number, seconds in signals:
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


def open_ended() -> int:
    """Open a descriptor of some process that has ended, since the rank's own can't be opened any more."""
    process = subprocess.Popen(("/bin/true",))
    pidfd = os.pidfd_open(process.pid)
    process.wait()
    return pidfd


def end_process(fix: EndProcess) -> Applied:
    """End it by SIGTERM, grace, SIGKILL. Takes seconds."""
    if fix.pid <= 1:
        return Applied("failed", f"pid {fix.pid} is never ended")
    try:
        fd = os.pidfd_open(fix.pid)
    except ProcessLookupError:
        return Applied("stale", "gone already")
    try:
        # A pidfd never changes its process: if the start time is right now, no signal can hit another process.
        process = read_process(Files(), fix.pid)
        if process is None or process.start_time != fix.start_time:
            return Applied("stale", "the pid is another process now")
        exit_poll = select.poll()
        exit_poll.register(fd, select.POLLIN)
        for number, seconds in ((signal.SIGTERM, GRACE_SECONDS), (signal.SIGKILL, KILL_SECONDS)):
            try:
                signal.pidfd_send_signal(fd, number)
            except ProcessLookupError:
                return Applied("applied", "ended by itself")
            if exit_poll.poll(seconds * 1000):
                return Applied("applied", f"ended by {number.name}")
        survivor = read_process(Files(), fix.pid)
        return Applied(
            "failed", f"survived SIGKILL for {KILL_SECONDS:g} s in state {survivor.state if survivor else 'gone'}"
        )
    finally:
        os.close(fd)


def signal_process(number: int, pid: int, start_time: int, container_id: str) -> bool:
    """Send a signal to exactly this process. Returns whether it was there, in that container (empty id: in none)."""
    try:
        fd = os.pidfd_open(pid)
    except ProcessLookupError:
        return False
    try:
        process = read_process(Files(), pid)
        if process is None or process.start_time != start_time or read_group(Files(), pid).container_id != container_id:
            return False
        signal.pidfd_send_signal(fd, number)
    except GONE:
        return False
    finally:
        os.close(fd)
    return True


def reboot() -> str:
    """Request a reboot, for which systemd stops all units in order. Returns and raises as `Actions.reboot`.

    Only with --check-inhibitors=yes do blocking inhibitors count for root: else systemctl(1) does so on terminals only.
    """
    command = ("systemctl", "reboot", "--check-inhibitors=yes")
    try:
        request = subprocess.run(command, capture_output=True, timeout=REBOOT_SECONDS, check=False)
    except subprocess.TimeoutExpired as error:
        raise TimeoutError(str(error)) from None
    answer = sanitize(request.stderr.decode("utf-8", "replace").strip())
    return f"systemctl reboot ended with exit code {request.returncode}: {answer}" if request.returncode else ""
