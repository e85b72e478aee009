"""Who owns the node: the holder of /run/sparkd/hands.lock, found without touching the lock."""

from __future__ import annotations

import json
import os

from msgspec import Struct

from sparkd.host.files import Files
from sparkd.lib.text import sanitize

LOCK = "/run/sparkd/hands.lock"


class NodeOwner(Struct, frozen=True):
    pid: int
    command: str
    """As a person would type it; empty where the lock's text is not the holder's."""
    invocation: str
    """The `io.sparkd.invocation` of this owner's containers; empty where it could not be told."""


def read(files: Files) -> NodeOwner | None:
    """The process that holds the lock; None where nobody does. Raises OSError where /proc/locks can't be read."""
    try:
        lock = files.stat(LOCK)
    except FileNotFoundError:
        return None
    pid = _holder(files.text("/proc/locks", limit=16 << 20), lock.device, lock.inode)
    return None if pid is None else _described(files, pid)


def _holder(locks: str, device: int, inode: int) -> int | None:
    """`1: FLOCK  ADVISORY  WRITE 5069 fe:00:2146417 0 EOF`; who merely waits has `->` behind the number."""
    wanted = f"{os.major(device):02x}:{os.minor(device):02x}:{inode}"
    for line in locks.splitlines():
        fields = line.split()
        if len(fields) > 5 and fields[1] == "FLOCK" and fields[5] == wanted:
            return int(fields[4])
    return None


def _described(files: Files, pid: int) -> NodeOwner:
    """The lock's text outlives its writer, so it counts only if it names the holder."""
    try:
        written = json.loads(files.text(LOCK, limit=65536))
    except (OSError, ValueError):
        written = None
    match written:
        case {"pid": int(writer), "command": str(command), "invocation": str(invocation)} if writer == pid:
            return NodeOwner(pid, sanitize(command), sanitize(invocation))
        case _:
            return NodeOwner(pid, "", "")
