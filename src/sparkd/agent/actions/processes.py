"""End processes by pidfd: a rank, a stray, an orphaned container; and unlink the segments that engines leave behind."""

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
from sparkd.base.state.rank_record import FILE, left_segments, read_rank

if TYPE_CHECKING:
    from sparkd.agent.actions.dockerd import Containers
    from sparkd.base.host import Host
    from sparkd.base.host.docker import ContainerFacts
    from sparkd.base.host.shm import Segment
    from sparkd.base.lib.main_loop import MainLoop

GRACE_SECONDS = 5.0
"""A stray has lost its leader, so nothing is lost with it; a worker's own shutdown takes 4 to 5 s."""
KILL_SECONDS = 5.0
SECOND_TERM_SECONDS = 3.0
"""vLLM swallows a first SIGTERM during start-up and exits on the second (seen: code 130 after 6 s); while it serves,
one is enough (0.3 to 0.6 s on the head) and a second only cuts its clean-up short."""
REBOOT_SECONDS = 20.0
"""Limit for systemd to take the request."""
LOOK_SECONDS = 0.1
"""A starting engine still makes segments between SIGTERM and its end."""
ROUNDING_SECONDS = 0.1
"""Error of a segment's age, and of a process's start."""


class Rank(Struct):
    """One container. `pidfd` becomes readable when its init ends, docker or not. The main loop alone waits for it."""

    container_id: str
    name: str
    image_id: str
    pid: int
    pidfd: int
    start_time: int = 0
    """Start of its init, in clock ticks since boot."""
    started_at: str = ""
    """The time by docker."""
    torn_kernels: int = 0
    """Empty files of kernels that were removed before its start."""
    ended: threading.Event = field(default_factory=threading.Event)
    """Set by the main loop, once it is watched."""

    def watch(self, loop: MainLoop) -> None:
        loop.watch_exit(self.pidfd, self.ended.set)

    def end(self, loop: MainLoop, grace_seconds: float, observe: Callable[[], None], *, starting: bool) -> bool:
        """End it by SIGTERM, grace, SIGKILL; whether it is gone. `observe` is called before each signal and between.

        `starting`: the engine may not heed the first SIGTERM yet.
        """
        steps = [(signal.SIGTERM, grace_seconds), (signal.SIGKILL, 10.0)]
        if starting:
            first = min(SECOND_TERM_SECONDS, grace_seconds)
            steps[:1] = [(signal.SIGTERM, first), (signal.SIGTERM, grace_seconds - first)]
        for number, seconds in steps:
            observe()
            try:
                signal.pidfd_send_signal(self.pidfd, number)
            except ProcessLookupError:
                return True
            deadline = time.monotonic() + seconds
            while (left := deadline - time.monotonic()) > 0:
                if loop.wait_until(self.ended.is_set, min(LOOK_SECONDS, left), shielded=True):
                    return True
                observe()
        return False

    def close(self, loop: MainLoop) -> None:
        loop.unwatch_exit(self.pidfd)
        os.close(self.pidfd)


def end_process(fix: EndProcess) -> Applied:
    """End it by SIGTERM, grace, SIGKILL. Takes seconds."""
    if fix.pid <= 1:
        return Applied("failed", f"pid {fix.pid} is never ended")
    try:
        fd = os.pidfd_open(fix.pid)
    except ProcessLookupError:
        return Applied("stale", "gone already")
    try:
        # The pidfd names one process for good: with the right start time now, no later signal hits another one.
        process = read_process(Files(), fix.pid)
        if process is None or process.start_time != fix.start_time:
            return Applied("stale", "the pid is another process now")
        ended = select.poll()
        ended.register(fd, select.POLLIN)
        for number, seconds in ((signal.SIGTERM, GRACE_SECONDS), (signal.SIGKILL, KILL_SECONDS)):
            try:
                signal.pidfd_send_signal(fd, number)
            except ProcessLookupError:
                return Applied("applied", "ended by itself")
            if ended.poll(seconds * 1000):
                return Applied("applied", f"ended by {number.name}")
        left = read_process(Files(), fix.pid)
        return Applied("failed", f"survived SIGKILL for {KILL_SECONDS:g} s in state {left.state if left else 'gone'}")
    finally:
        os.close(fd)


def signal_process(number: int, pid: int, start_time: int, container_id: str) -> bool:
    """Send a signal to that very process of that container; whether it was there. Without an id: of no container."""
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


def named_segments(host: Host) -> tuple[Segment, ...]:
    """Segments with an engine's kind of name. Cheap: reads no process."""
    return host.segments(NAMES)


def mapped_below(host: Host, pid: int, start_time: int = 0) -> tuple[UnlinkSegment, ...]:
    """Named segments of this process and its descendants, to be unlinked when they end.

    A killed engine leaves its segments in the host's /dev/shm. Its own is what one of its processes has open or mapped,
    belongs to that process's user, and was last written since its start: what it could itself have unlinked, and has
    not found there. So they can be unlinked at once, of any user; preflight must wait until they are old.
    `start_time`: of that process; 0 where it can't be another one.
    """
    if not (named := named_segments(host)):
        return ()
    table = host.processes()
    if (first := table.get(pid)) is None or start_time not in (0, first.start_time):
        return ()
    rank = {process.pid: process for process in (first, *table.descendants(pid))}
    uses = host.segment_uses(rank.values(), named)
    users = {pid: details.uid for _, _, pid in uses.used if (details := host.details(rank[pid])) is not None}
    own = {(device, inode, users[pid]) for device, inode, pid in uses.used if pid in users}
    lived_seconds = host.uptime_seconds() - first.start_time / os.sysconf("SC_CLK_TCK") + ROUNDING_SECONDS
    made = (segment for segment in named if -ROUNDING_SECONDS <= segment.age_seconds <= lived_seconds)
    mine = (segment for segment in made if (*segment.identity, segment.uid) in own)
    return tuple(
        UnlinkSegment(segment.path, segment.device, segment.inode, segment.allocated_bytes) for segment in mine
    )


def unlink_segment(fix: UnlinkSegment, host: Host) -> Applied:
    """Unlink this very file, if no process uses it."""
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
        file = os.stat(name, dir_fd=fd, follow_symlinks=False)
        if not stat.S_ISREG(file.st_mode) or (file.st_dev, file.st_ino) != identity:
            return Applied("stale", "now another file")
        os.unlink(name, dir_fd=fd)
    except FileNotFoundError:
        return Applied("stale", "gone already")
    finally:
        os.close(fd)
    return Applied("applied", "unlinked")


def end_orphan(host: Host, containers: Containers, orphan: ContainerFacts) -> None:
    """Stop and remove a container whose agent is gone, with its engine's segments and record. Raises LaunchError."""
    left: tuple[UnlinkSegment, ...] = ()
    with suppress(OSError, ValueError):  # any user can make more files there than are read
        left = mapped_below(host, orphan.pid) if orphan.running and orphan.pid > 1 else ()
    if orphan.running:
        with suppress(LaunchError):  # a removal kills what docker gave up waiting for
            containers.stop(orphan.id, 0)  # vLLM drains nothing after SIGTERM, and the other ranks wait for this end
    containers.remove(orphan.id)
    for segment in left:
        unlink_segment(segment, host)
    record = read_rank(host).of(orphan)
    if record is not None and record.container_id in ("", orphan.id):
        for path, identity in record.segments.items():
            unlink_segment(UnlinkSegment(path, *identity), host)
        with suppress(OSError):  # the next one replaces it
            forget_rank(host)


def forget_rank(host: Host) -> None:
    """Remove its record, unless a segment is left: shared-memory finds it by that. Raises OSError."""
    if not left_segments(host):
        Path(host.files.real(FILE.path)).unlink(missing_ok=True)


def reboot() -> str:
    """As `Actions.reboot`. systemd stops all units in order.

    For root inhibitors that block count by that option alone: else systemctl(1) lets them count on a terminal only.
    """
    command = ("systemctl", "reboot", "--check-inhibitors=yes")
    try:
        done = subprocess.run(command, capture_output=True, timeout=REBOOT_SECONDS, check=False)
    except subprocess.TimeoutExpired as error:
        raise TimeoutError(str(error)) from None
    said = sanitize(done.stderr.decode("utf-8", "replace").strip())
    return f"systemctl reboot ended with exit code {done.returncode}: {said}" if done.returncode else ""
