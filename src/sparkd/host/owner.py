"""The owner of this node: the process that holds the lock of sparkd.

Who can open the lock can hold it, so root alone can. Everybody may read who the owner is.
"""

from __future__ import annotations

import errno
import os
import re
import time
from collections import Counter
from contextlib import suppress

from msgspec import Struct
from msgspec.json import decode
from msgspec.structs import replace

from sparkd.host.files import Files
from sparkd.host.processes import GONE, overgrown, read_process, read_status
from sparkd.lib.text import sanitize

OWNER_LOCK, OWNER_FILE = "/run/sparkd/hands.lock", "/run/sparkd/owner.json"
MOST_LOCKS, LOCKS_SECONDS = 20_000, 1.0
"""Read of /proc/locks. The kernel begins at its first lock for each page: 50,000 took 1.8 s, 200,000 took 19 s."""
_HOLDER = re.compile(rb"\d+: (FLOCK|POSIX|OFDLCK|LEASE) +\S+ +\S+ +(-?\d+) (\S+) ")
"""`1: FLOCK  ADVISORY  WRITE 5069 fe:00:2146417 0 EOF`; a waiting process has `->` behind the number."""


class NodeOwner(Struct, frozen=True):
    """The holder of the lock, by its own account. Command and invocation are empty where there is none of it."""

    pid: int
    command: str
    """As typed: `sparkd run --role head`."""
    invocation: str
    """systemd's, or generated at a start by hand: the `io.sparkd.invocation` of this owner's containers."""
    start_time: int = 0
    """As in Process."""

    @property
    def hint(self) -> str:
        """For who wants its place. Commands other than the agent end by themselves."""
        agent = not self.command or self.command.startswith("sparkd run")
        return "stop that first: systemctl stop sparkd-head sparkd-worker" if agent else "it ends by itself: try again"


def read_owner(files: Files) -> NodeOwner | None:
    """The process that owns this node; None where none does. The lock is not touched. Raises OSError.

    An account in OWNER_FILE, which root alone can write, counts while the process that wrote it lives.
    """
    with suppress(FileNotFoundError, ValueError, RecursionError):
        account = decode(files.itself(OWNER_FILE, 65536).content, type=NodeOwner)
        process = read_process(files, account.pid)
        if process is not None and not process.dead and process.start_time == account.start_time:
            return replace(account, command=sanitize(account.command), invocation=sanitize(account.invocation))
    pid = _lock_holder(files)
    return None if pid is None else NodeOwner(pid, "", "")


def _lock_holder(files: Files) -> int | None:
    try:
        lock = files.stat(OWNER_LOCK)
    except FileNotFoundError:
        return None
    identity = f"{os.major(lock.device):02x}:{os.minor(lock.device):02x}:{lock.inode}".encode()
    rest, pids, deadline = b"", Counter[int](), time.monotonic() + LOCKS_SECONDS
    for chunk in files.chunks("/proc/locks"):
        *lines, rest = (rest + chunk).split(b"\n")
        found = [match.groups() for match in map(_HOLDER.match, lines) if match]
        for kind, pid, file in found:
            if (kind, file) == (b"FLOCK", identity):
                return _verified(files, int(pid))
        pids.update(int(pid) for _, pid, _ in found)
        if pids.total() > MOST_LOCKS or time.monotonic() > deadline:
            raise overgrown(files, "more file locks than can be read", _uids(files, pids))
    return None


def _verified(files: Files, pid: int) -> int:
    """The kernel keeps the pid of who took the lock. A child may hold it now, and the pid be another process's."""
    with suppress(PermissionError):  # not root
        if all(target != OWNER_LOCK for _, target in files.links(f"/proc/{pid}/fd")):
            raise ProcessLookupError(errno.ESRCH, f"pid {pid}, which took {OWNER_LOCK}, has passed it on", OWNER_LOCK)
    return pid


def _uids(files: Files, pids: Counter[int]) -> list[int]:
    """Of the process with most of them."""
    with suppress(*GONE, OSError, ValueError, IndexError):
        return [read_status(files, pids.most_common(1)[0][0]).uid]
    return []
