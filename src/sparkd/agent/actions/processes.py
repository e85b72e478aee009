"""Ends a stray process, or signals another, by pidfd; and requests the end of all, a reboot."""

import os
import select
import signal
import subprocess

from sparkd.agent.preflight.fixes import Applied, EndProcess
from sparkd.base.host.cgroups import read_group
from sparkd.base.host.files import Files
from sparkd.base.host.processes import GONE, read_process
from sparkd.base.lib.text import sanitize

GRACE_SECONDS = 5.0
"""Time between SIGTERM and SIGKILL of a stray. It has lost its leader, so nothing is lost with it; a worker's own
shutdown takes 4 to 5 s.
"""
KILL_SECONDS = 5.0
"""Limit for a process to end after SIGKILL."""
REBOOT_SECONDS = 20.0
"""Limit for systemd to take the request."""


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
