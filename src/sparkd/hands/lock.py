"""The right to change the node: one holder of /run/sparkd/hands.lock at a time."""

from __future__ import annotations

import fcntl
import json
import os
from pathlib import Path

from msgspec import Struct, to_builtins

from sparkd.errors import BlockedError

LOCK_PATH = Path("/run/sparkd/hands.lock")


class Owner(Struct, frozen=True):
    """Who holds the lock, written into it for whoever is turned away."""

    pid: int
    command: str
    """As a person would type it: `sparkd run --role head`."""
    invocation: str
    """systemd's invocation id, or one made up for a start by hand: the label of this owner's containers."""


def take(path: Path, owner: Owner) -> int:
    """The lock's file descriptor, held until it is closed. Raises BlockedError (exit 10) naming another owner."""
    path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        other = _read(fd)
        os.close(fd)
        raise BlockedError(
            f"this node is owned by {other}", "stop that first: systemctl stop sparkd-head sparkd-worker"
        ) from None
    # The file is never removed: a lock on an unlinked file would exclude nobody.
    os.ftruncate(fd, 0)
    os.pwrite(fd, json.dumps(to_builtins(owner)).encode(), 0)
    return fd


def _read(fd: int) -> str:
    try:
        match json.loads(os.pread(fd, 4096, 0)):
            case {"pid": int(pid), "command": str(command)}:
                return f"pid {pid} ({command})"
    except ValueError:
        pass
    return "another sparkd"
