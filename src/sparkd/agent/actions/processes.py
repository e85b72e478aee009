"""Ends processes by pidfd: a rank, a stray, an orphaned container. Unlinks the segments that engines leave."""

from __future__ import annotations

import os
import select
import signal
import stat
import subprocess
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct, field

from sparkd.agent.preflight.checks.shared_memory import NAMES
from sparkd.agent.preflight.fixes import Applied, EndProcess, UnlinkSegment
from sparkd.base.host import shm
from sparkd.base.host.cgroups import read_group
from sparkd.base.host.files import Files
from sparkd.base.host.processes import GONE, read_process
from sparkd.base.lib.errors import LaunchError
from sparkd.base.lib.text import sanitize
from sparkd.base.state.rank_record import RANK_FILE, left_segments, read_rank

if TYPE_CHECKING:
    from sparkd.agent.actions.dockerd import Containers
    from sparkd.base.host import Host
    from sparkd.base.host.docker import ContainerFacts
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
ROUNDING_SECONDS = 0.1
"""Error of a segment's age, and of a process's start."""


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
    torn_kernels: int = 0
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


def mapped_below(host: Host, pid: int, start_time: int = 0) -> tuple[UnlinkSegment, ...]:
    """Named segments of this process and its descendants, to be unlinked when they end.

    A killed engine leaves its segments in the host's /dev/shm. A segment is its own if one of its processes has it open
    or mapped, it belongs to that process's user, and it was last written since the engine's start. Such a segment the
    engine could have unlinked itself, so it can be unlinked at once, for any user; preflight must wait until
    segments are old. `start_time`: the process's; 0 where the pid can't be another process.
    """
    if not (named := host.segments(NAMES)):
        return ()
    table = host.processes()
    if (ancestor := table.get(pid)) is None or start_time not in (0, ancestor.start_time):
        return ()
    members = {process.pid: process for process in (ancestor, *table.descendants(pid))}
    uses = host.segment_uses(members.values(), named)
    users = {pid: details.uid for _, _, pid in uses.used if (details := host.details(members[pid])) is not None}
    used_keys = {(device, inode, users[pid]) for device, inode, pid in uses.used if pid in users}
    age_seconds = host.uptime_seconds() - ancestor.start_time / os.sysconf("SC_CLK_TCK") + ROUNDING_SECONDS
    of_its_time = (segment for segment in named if -ROUNDING_SECONDS <= segment.age_seconds <= age_seconds)
    own_segments = (segment for segment in of_its_time if (*segment.identity, segment.uid) in used_keys)
    return tuple(
        UnlinkSegment(segment.path, segment.device, segment.inode, segment.allocated_bytes) for segment in own_segments
    )


def unlink_segment(fix: UnlinkSegment, host: Host) -> Applied:
    """Unlink exactly this file, if no process uses it."""
    folder, _, name = fix.path.rpartition("/")
    if folder != shm.FOLDER or name in ("", ".", ".."):
        return Applied("failed", f"not right below {shm.FOLDER}")
    identity = (fix.device, fix.inode)
    segment = shm.read_segment(host.files, name, time.time())
    if segment is None or segment.identity != identity:
        return Applied("stale", "gone, or now another file")
    uses = host.segment_uses(host.processes(), (segment,))
    if uses.used:
        return Applied("stale", f"in use again by pid {uses.used[0][2]}")
    if uses.unreadable_pids:
        return Applied("stale", f"pid {uses.unreadable_pids[0]} can't be inspected")
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        status = os.stat(name, dir_fd=fd, follow_symlinks=False)
        if not stat.S_ISREG(status.st_mode) or (status.st_dev, status.st_ino) != identity:
            return Applied("stale", "now another file")
        os.unlink(name, dir_fd=fd)
    except FileNotFoundError:
        return Applied("stale", "gone already")
    finally:
        os.close(fd)
    return Applied("applied", "unlinked")


def end_orphan(host: Host, containers: Containers, orphan: ContainerFacts) -> None:
    """Stop and remove a container whose agent is gone, with its engine's segments and record. Raises LaunchError."""
    segments: tuple[UnlinkSegment, ...] = ()
    with suppress(OSError, ValueError):  # any user can make more files in /dev/shm than are read
        segments = mapped_below(host, orphan.pid) if orphan.running and orphan.pid > 1 else ()
    if orphan.running:
        with suppress(LaunchError):  # the removal below kills it too
            containers.stop(orphan.id, 0)  # vLLM drains nothing after SIGTERM, and the other ranks wait for this end
    containers.remove(orphan.id)
    for segment in segments:
        unlink_segment(segment, host)
    record = read_rank(host).find_record(orphan)
    if record is not None and record.container_id in ("", orphan.id):
        for path, identity in record.segments.items():
            unlink_segment(UnlinkSegment(path, *identity), host)
        with suppress(OSError):  # the next rank's record replaces it
            forget_rank(host)


def forget_rank(host: Host) -> None:
    """Remove the rank's record, unless a segment is left, which the check shared-memory finds by it. Raises OSError."""
    if not left_segments(host):
        Path(host.files.real(RANK_FILE.path)).unlink(missing_ok=True)


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
