"""Unlinking an orphaned /dev/shm segment: this very file, and only while still nobody uses it."""

from __future__ import annotations

import os
import stat
import time

from sparkd.hands.applied import Applied
from sparkd.host import Host, shm
from sparkd.host.shm import Segment, Uses
from sparkd.preflight.fixes import UnlinkSegment
from sparkd.preflight.shm import NAMES


def named(host: Host) -> tuple[Segment, ...]:
    """Those with a name that an engine may have given. Cheap: no process is looked at."""
    return tuple(segment for segment in host.segments() if NAMES.fullmatch(segment.name))


def mapped_below(host: Host, pid: int) -> tuple[UnlinkSegment, ...]:
    """Segments with an engine's names that this process's descendants have mapped now: theirs, to clear when they end.

    An engine that is killed leaves its segments behind in the host's /dev/shm. Told by who maps them, they can be
    cleared at once, where preflight must wait until they have grown old.
    """
    found = named(host)
    uses = host.segment_uses(host.processes().descendants(pid), found) if found else Uses((), ())
    mapped = {(device, inode) for device, inode, _ in uses.used}
    return tuple(
        UnlinkSegment(segment.path, segment.device, segment.inode, segment.allocated_bytes)
        for segment in found
        if (segment.device, segment.inode) in mapped
    )


def unlink(fix: UnlinkSegment, host: Host) -> Applied:
    folder, _, name = fix.path.rpartition("/")
    if folder != shm.FOLDER or name in ("", ".", ".."):
        return Applied("failed", f"not right below {shm.FOLDER}")
    wanted = [
        s
        for s in shm.segments(host.files, time.time())
        if (s.path, s.device, s.inode) == (fix.path, fix.device, fix.inode)
    ]
    if not wanted:
        return Applied("stale", "gone, or another file by now")
    uses = shm.uses(host.files, host.processes(), wanted)
    if uses.used:
        return Applied("stale", f"in use again by pid {uses.used[0][2]}")
    if uses.unreadable_pids:
        return Applied("stale", f"pid {uses.unreadable_pids[0]} can't be looked at")
    return _unlink(folder, name, (fix.device, fix.inode))


def _unlink(folder: str, name: str, identity: tuple[int, int]) -> Applied:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        found = os.stat(name, dir_fd=fd, follow_symlinks=False)
        if not stat.S_ISREG(found.st_mode) or (found.st_dev, found.st_ino) != identity:
            return Applied("stale", "another file by now")
        os.unlink(name, dir_fd=fd)
    except FileNotFoundError:
        return Applied("stale", "gone already")
    finally:
        os.close(fd)
    return Applied("applied", "unlinked")
