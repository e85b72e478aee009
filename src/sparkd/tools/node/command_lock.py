"""Runs of commands that change this node: one of a kind at a time, each failed write an error with a hint."""

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sparkd.agent.actions.shared_folders import refuse_shared
from sparkd.base.lib.errors import AS_ROOT, UsageError
from sparkd.base.lib.lock import hold, open_lock

HINTS = {errno.ENOSPC: "make room: df -h", errno.EROFS: "it is mounted read-only: findmnt --options ro"}
"""Hints of a UsageError, by the number of the OSError."""
SETUP_LOCK = "run/sparkd/setup.lock"
"""The lock of commands that set up this node, below its root folder."""


@contextmanager
def usage_error(reason: str, hint: str = AS_ROOT) -> Iterator[None]:
    """Raise UsageError in place of OSError, with the error's own hint where it has one."""
    try:
        yield
    except OSError as error:
        if hint == AS_ROOT and not os.geteuid():
            # Root already: "run as root" would not help, and the command may have a secret in it.
            hint = "the disk: sudo dmesg; what is immutable: lsattr; what is mounted: findmnt"
        hint = getattr(error, "hint", HINTS.get(error.errno or 0, hint))  # a SharedFolderError's, or a FolderError's
        raise UsageError(f"{reason}: {error.strerror or error}", hint) from None


@contextmanager
def hold_command_lock(root: Path, name: str = SETUP_LOCK, commands: str = "`sparkd init` or `tune`") -> Iterator[None]:
    """Hold a lock that only one of some commands may have at a time. Raises UsageError where another one has it.

    `name`: path of the lock file below `root`; `commands`: those commands, for the error.
    """
    lock = root / name
    with usage_error(f"{lock} can't be opened"):
        refuse_shared(lock.parent)
        fd = open_lock(lock)
    with hold(fd) as is_held:
        if not is_held:
            raise UsageError(f"another {commands} is under way", "wait for it")
        yield
