"""psutil's readings: processes, memory, free space of disks. No other module imports psutil.

Other parts of psutil are unsafe where any user runs programs: docs/adr/0022 has the measurements.
"""

from __future__ import annotations

import errno
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import psutil

from sparkd.base.host.files import Files, Kind

if TYPE_CHECKING:
    from psutil._ntuples import svmem

_lock = threading.Lock()


def pids(files: Files) -> list[int]:
    """All pids, ascending. Raises OSError."""
    with _use_procfs(files):
        try:
            return psutil.pids()
        except IndexError:  # psutil takes the lowest: a tree of files may have none
            return []


def memory(files: Files) -> svmem:
    """Memory in bytes; 0 for a missing line. Raises OSError, and ValueError for another format."""
    if files.lstat("/proc/meminfo").kind is not Kind.FILE:  # psutil follows symlinks and waits at a FIFO
        raise OSError(errno.EINVAL, "no regular file", "/proc/meminfo")
    # psutil warns of missing lines; under the lock, since all threads share the filters
    with _use_procfs(files), warnings.catch_warnings(action="ignore"):
        try:
            return psutil.virtual_memory()
        except (IndexError, KeyError):
            raise ValueError("/proc/meminfo has another format") from None


def disk_space(path: str) -> tuple[int, int]:
    """(total, free) bytes of the file system of this machine's `path`; blocks reserved for root count as free."""
    usage = psutil.disk_usage(path)
    return usage.total, usage.total - usage.used


@contextmanager
def _use_procfs(files: Files) -> Iterator[None]:
    """Let psutil read below the root of `files`, for one thread at a time: psutil has one PROCFS_PATH for all."""
    with _lock:
        previous_path, psutil.PROCFS_PATH = psutil.PROCFS_PATH, files.real("/proc")
        try:
            yield
        finally:
            psutil.PROCFS_PATH = previous_path
