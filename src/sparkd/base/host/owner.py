"""The owner of this node: the process that holds the lock of sparkd.

Only root can open the lock, since a process that can open it can hold it. Every user may read who the owner is.
"""

import fcntl
import os
from collections.abc import MutableMapping
from contextlib import suppress
from typing import NamedTuple

from msgspec import Struct
from msgspec.json import decode
from msgspec.structs import replace

from sparkd.base.host.files import Files
from sparkd.base.host.processes import is_alive
from sparkd.base.lib import prepared
from sparkd.base.lib.lock import try_lock
from sparkd.base.lib.text import sanitize

OWNER_LOCK, OWNER_FILE = "/run/sparkd/hands.lock", "/run/sparkd/owner.json"
UNNAMED = f"the process that holds {OWNER_LOCK}, which {OWNER_FILE} does not name"
FIND_HOLDER = f"see which it is: sudo fuser -v {OWNER_LOCK}"
HANDED = "RELOADED_SPARKD"
"""Variable by which a program hands the lock and its invocation to the one that replaces it in the same process."""


class Handed(NamedTuple):
    lock_fd: int
    invocation: str


def take_handed(env: MutableMapping[str, str]) -> Handed | None:
    """Read and remove the variable HANDED, which is for no other process. None where nothing was handed on."""
    number, _, invocation = env.pop(HANDED, "").partition(" ")
    return Handed(int(number), invocation) if number.isdigit() and int(number) > 2 else None


class NodeOwner(Struct, frozen=True):
    """The holder of the lock, by its own account. Without an account, all fields are empty."""

    pid: int
    command: str
    """The command as typed: `sparkd run --role head`."""
    invocation: str
    """systemd's, or generated at a start by hand: the `io.sparkd.invocation` of this owner's containers."""
    start_time: int = 0
    """Clock ticks since boot, as in Process."""

    @property
    def hint(self) -> str:
        """How to take its place. Commands other than the agent end by themselves."""
        is_agent = not self.command or self.command.startswith("sparkd run")
        stop = "stop that first: sudo systemctl stop sparkd-head sparkd-worker"
        return stop if is_agent else "it ends by itself: try again"


def read_owner(files: Files) -> NodeOwner | None:
    """The process that owns this node; None where none does. Raises OSError.

    An account in OWNER_FILE, which root alone can write, counts while the process that wrote it lives. Without one, and
    without permission to open the lock, the node counts as free.
    """
    owner = read_account(files)
    return NodeOwner(0, "", "") if owner is None and _is_held(files) else owner


def read_account(files: Files) -> NodeOwner | None:
    """The account of a living owner; None without one. Raises OSError."""
    with suppress(FileNotFoundError, ValueError, RecursionError):
        account = decode(files.itself(OWNER_FILE, 65536).content, type=prepared(NodeOwner))
        if is_alive(files, account.pid, account.start_time):
            return replace(account, command=sanitize(account.command), invocation=sanitize(account.invocation))
    return None


def _is_held(files: Files) -> bool:
    """Whether a process holds the lock, by taking it here for a moment, shared with other readers.

    A process that wants the lock tries for longer than that. Any user can make the table of the kernel's locks too
    large to read.
    """
    try:
        lock_fd = os.open(files.real(OWNER_LOCK), os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except (FileNotFoundError, PermissionError):
        return False
    try:
        return not try_lock(lock_fd, fcntl.LOCK_SH)
    finally:
        os.close(lock_fd)
