"""What psutil reads of a machine: its processes, its memory, the room on its disks. No other module imports psutil.

Some of psutil is not for a node on which strangers run programs:
- `name()` and `cmdline()` read all that a process calls its command line. It may set that to any part of its memory
  (PR_SET_MM_MAP): 256 MiB of it cost psutil 2.3 GiB. `processes` reads /proc/PID/stat, and arguments up to a bound.
- `net_connections()` and `open_files()` stat each open file that looks deleted, which hangs on a dead file server, and
  name one process for a socket that several share.
"""

from __future__ import annotations

import errno
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import psutil

from sparkd.host.files import Files, Kind

_lock = threading.Lock()


class Memory(NamedTuple):
    """In bytes, as free(1) counts."""

    total: int
    free: int
    buffers: int
    cached: int
    """With the slab memory that the kernel would give back."""
    shared: int


def pids(files: Files) -> list[int]:
    """Of every process, ascending. Raises OSError."""
    with _procfs(files):
        try:
            return psutil.pids()
        except IndexError:  # psutil notes the lowest: a tree of files may have none
            return []


def effective_uid(files: Files, pid: int) -> int:
    """Raises ProcessLookupError once the process has ended, OSError, and ValueError for another format."""
    try:
        with _procfs(files, f"{pid}/stat", f"{pid}/status"):
            return psutil.Process(pid).uids().effective
    except psutil.NoSuchProcess:
        raise ProcessLookupError(errno.ESRCH, "no such process", f"/proc/{pid}") from None
    except psutil.AccessDenied:
        raise PermissionError(errno.EACCES, "permission denied", f"/proc/{pid}") from None
    except IndexError:
        raise ValueError(f"/proc/{pid} has another format") from None


def memory(files: Files) -> Memory:
    """Raises OSError, and ValueError for another format. What the kernel leaves out is 0."""
    # psutil warns of what is left out; under the lock, for the filters are one for all threads
    with _procfs(files, "meminfo"), warnings.catch_warnings(action="ignore"):
        try:
            found = psutil.virtual_memory()
        except (IndexError, KeyError):
            raise ValueError("/proc/meminfo has another format") from None
    return Memory(found.total, found.free, found.buffers, found.cached, found.shared)


def disk_space(path: str) -> tuple[int, int]:
    """(total, free) of the file system that this machine's `path` is on; for root, what is kept back for it counts."""
    found = psutil.disk_usage(path)
    return found.total, found.total - found.used


@contextmanager
def _procfs(files: Files, *names: str) -> Iterator[None]:
    """psutil reads below this root. It has one PROCFS_PATH for all threads.

    psutil follows symlinks and waits at a FIFO: in a tree, `names` have to be regular files of that tree.
    """
    proc = files.real("/proc")
    if files.root != "/":
        for name in names:
            path = f"/proc/{name}"
            if files.real(path) != f"{proc}/{name}" or files.stat(path).kind is not Kind.FILE:
                raise OSError(errno.EINVAL, "no regular file", path)
    with _lock:
        before = psutil.PROCFS_PATH
        psutil.PROCFS_PATH = proc
        try:
            yield
        finally:
            psutil.PROCFS_PATH = before
