"""The lock that one process of sparkd holds while it may change this node, and the account of which one it is."""

import os
import time
from contextlib import suppress
from pathlib import Path

from msgspec.json import encode
from msgspec.structs import replace

from sparkd.agent.actions import files
from sparkd.agent.actions.shared_folders import refuse_shared
from sparkd.base.host import Host
from sparkd.base.host.files import Files
from sparkd.base.host.owner import FIND_HOLDER, OWNER_FILE, OWNER_LOCK, UNNAMED, Handed, NodeOwner, read_account
from sparkd.base.host.processes import read_process
from sparkd.base.lib.errors import BlockedError
from sparkd.base.lib.lock import POLL_SECONDS, open_lock, try_lock

LOCK_SECONDS = 1.0
"""Limit for the lock. A process that only looks for an owner has it for an instant; a new owner may not have written
its account yet."""


def acquire_lock(host: Host, owner: NodeOwner, handed: Handed | None = None) -> int:
    """Take the lock, which is held until the returned descriptor is closed, and write the account.

    `handed`: the lock from before a reload. Raises BlockedError (exit 10) that names another owner.
    """
    lock = Path(host.files.real(OWNER_LOCK))
    refuse_shared(lock.parent)
    fd = _take_over_lock(lock, handed) or open_lock(lock)
    os.fchmod(fd, 0o600)  # who may open it may hold it
    deadline = time.monotonic() + LOCK_SECONDS
    while not try_lock(fd):
        with suppress(OSError):
            if (holder := read_account(host.files)) is not None:
                os.close(fd)
                raise BlockedError(f"this node is owned by pid {holder.pid} ({holder.command})", holder.hint)
        if time.monotonic() > deadline:
            os.close(fd)
            raise BlockedError(f"this node is owned by {UNNAMED}", FIND_HOLDER)
        time.sleep(POLL_SECONDS)
    try:
        write_account(host, owner)
    except OSError:  # a full /run ends no agent: without an account, the lock alone shows who the owner is
        remove_account(host)
    return fd


def write_account(host: Host, owner: NodeOwner) -> None:
    """Write who has the lock. Raises OSError."""
    process = read_process(Files(), owner.pid)
    account = replace(owner, start_time=process.start_time if process is not None else 0)
    files.write(Path(host.files.real(OWNER_FILE)), encode(account).decode(), 0o644, durable=False)


def complete_account(host: Host, owner: NodeOwner) -> None:
    """Write the account where a full /run took none. Raises OSError."""
    if read_account(host.files) is None:
        write_account(host, owner)


def _take_over_lock(lock: Path, handed: Handed | None) -> int:
    """The descriptor of the lock that was held before a reload; 0 where none was handed on."""
    with suppress(OSError):
        if handed is not None and os.path.samestat(os.fstat(handed.lock_fd), lock.lstat()):
            os.set_inheritable(handed.lock_fd, False)
            return handed.lock_fd
    return 0


def remove_account(host: Host) -> None:
    """Remove the account. A failure is ignored: an account counts no longer than its process lives."""
    with suppress(OSError):
        Path(host.files.real(OWNER_FILE)).unlink(missing_ok=True)
