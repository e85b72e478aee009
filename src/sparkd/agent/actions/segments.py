"""Finds and unlinks the shared memory that an engine leaves in /dev/shm."""

import os
import stat
import time

from sparkd.agent.preflight.checks.shared_memory import NAMES
from sparkd.agent.preflight.fixes import Applied, UnlinkSegment
from sparkd.base.host import Host, shm

ROUNDING_SECONDS = 0.1
"""Error of a segment's age, and of a process's start."""


def find_own_segments(host: Host, pid: int, start_time: int = 0) -> tuple[UnlinkSegment, ...]:
    """Named segments of this process and its descendants, to be unlinked when they end.

    A killed engine leaves its segments in the host's /dev/shm. A segment is its own if
    - one of its processes has it open or mapped,
    - it belongs to that process's user, and
    - it was last written since the engine's start.
    Such a segment the engine could have unlinked itself, so it can be unlinked at once, for any user; preflight must
    wait until segments are old. `start_time`: the process's; 0 where the pid can't be another process.
    """
    if not (named := host.segments(NAMES)):
        return ()
    table = host.processes()
    if (ancestor := table.get(pid)) is None or start_time not in (0, ancestor.start_time):
        return ()
    members = {process.pid: process for process in (ancestor, *table.descendants(pid))}
    uses = host.segment_uses(members.values(), named)
    users = {use.pid: details.uid for use in uses.used if (details := host.details(members[use.pid])) is not None}
    used_keys = {(use.identity, users[use.pid]) for use in uses.used if use.pid in users}
    age_seconds = host.uptime_seconds() - ancestor.start_time / os.sysconf("SC_CLK_TCK") + ROUNDING_SECONDS
    of_its_time = (segment for segment in named if -ROUNDING_SECONDS <= segment.age_seconds <= age_seconds)
    own_segments = (segment for segment in of_its_time if (segment.identity, segment.uid) in used_keys)
    # Without their sizes, which change: each has to be the same in the next look.
    return tuple(UnlinkSegment(segment.path, segment.device, segment.inode) for segment in own_segments)


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
        return Applied("stale", f"in use again by pid {uses.used[0].pid}")
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
