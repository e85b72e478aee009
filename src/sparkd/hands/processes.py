"""Ending a process that was judged, and no other: by pidfd, after its start time was checked again."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING

from sparkd.hands.applied import Applied
from sparkd.host.processes import Process, parse_stat
from sparkd.preflight.fixes import EndProcess

if TYPE_CHECKING:
    from sparkd.pulse import Pulse

GRACE_SECONDS = 5.0
"""A stray's leader is gone, so nothing is lost with it; a worker's own shutdown was seen to take 4 to 5 s."""
KILL_SECONDS = 5.0


def end(fix: EndProcess, pulse: Pulse) -> Applied:
    if fix.pid <= 1:
        return Applied("failed", f"pid {fix.pid} is never ended")
    try:
        fd = os.pidfd_open(fix.pid)
    except ProcessLookupError:
        return Applied("stale", "gone already")
    try:
        # The pidfd names one process for good: if its start time is right now, no later signal can hit another.
        found = _look(fix.pid)
        if found is None or found.start_time != fix.start_time:
            return Applied("stale", "the pid is another process now")
        for number, seconds in ((signal.SIGTERM, GRACE_SECONDS), (signal.SIGKILL, KILL_SECONDS)):
            try:
                signal.pidfd_send_signal(fd, number)
            except ProcessLookupError:
                return Applied("applied", "ended by itself")
            if pulse.outwait(seconds, fd):
                return Applied("applied", f"ended by {number.name}")
        left = _look(fix.pid)
        return Applied("failed", f"survived SIGKILL for {KILL_SECONDS:g} s in state {left.state if left else 'gone'}")
    finally:
        os.close(fd)


def _look(pid: int) -> Process | None:
    """None for a process that is gone."""
    try:
        return parse_stat(Path(f"/proc/{pid}/stat").read_bytes())
    except OSError:
        return None
