"""Locks between processes, by flock(2): the kernel takes one back when its holder ends."""

import errno
import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

POLL_SECONDS = 0.02


def open_lock(path: Path) -> int:
    """Open, or create, a lock file that only root can open, and so hold: what others can read they can lock.

    It is never removed: a lock on an unlinked file would exclude nobody. One that exists can be held on a read-only
    disk, too.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    flags = os.O_CLOEXEC | os.O_NOFOLLOW
    try:
        return os.open(path, os.O_RDWR | os.O_CREAT | flags, 0o600)
    except OSError as error:
        if error.errno != errno.EROFS:
            raise
        with suppress(FileNotFoundError):
            return os.open(path, os.O_RDONLY | flags)
        raise


def try_lock(fd: int, kind: int = fcntl.LOCK_EX, *, wait: bool = False) -> bool:
    """Whether this process has the lock now. With `wait`, it waits for another holder, without a limit.

    Raises OSError where the file system has no locks.
    """
    with suppress(BlockingIOError):
        fcntl.flock(fd, kind if wait else kind | fcntl.LOCK_NB)
        return True
    return False


@contextmanager
def hold(fd: int, seconds: float = 0.0) -> Iterator[bool]:
    """Hold a lock, and close `fd` at the end. Yields whether it was free within `seconds`."""
    deadline = time.monotonic() + seconds
    try:
        while not (held := try_lock(fd)) and time.monotonic() < deadline:
            time.sleep(POLL_SECONDS)
        yield held
    finally:
        os.close(fd)
