"""What processes do: bytes read and written, CPU time, page faults."""

import os
import re
from collections.abc import Sequence
from contextlib import suppress

from msgspec import Struct

from sparkd.base.host.files import Files
from sparkd.base.host.processes import GONE, Process

_DISK = re.compile(r"^(?:read|write)_bytes: (\d+)$", re.MULTILINE)
"""Lines of /proc/PID/io."""


class Activity(Struct, frozen=True):
    """Sums since the processes began, with ended children."""

    disk_bytes: int = 0
    """Read from disks and file servers, not from the page cache, and written to files on them: a download counts. A
    page fault with a read counts again as one page, for file systems that account for no reads (FUSE, 9p).
    """
    cpu_seconds: float = 0.0
    faults: int = 0
    """Page faults without a read (first touches)."""


def read_activity(files: Files, processes: Sequence[Process]) -> Activity:
    """Sums over all processes that could be read before they ended. Raises OSError, ValueError."""
    page_bytes = os.sysconf("SC_PAGE_SIZE")  # NVIDIA also builds kernels for arm64 with pages of 64 KiB
    disk_bytes, ticks, faults = 0, 0, 0
    for process in processes:
        with suppress(*GONE):
            fields = files.bytes(f"/proc/{process.pid}/stat", limit=4096).rpartition(b")")[2].split()
            io_bytes = _DISK.findall(files.text_if_any(f"/proc/{process.pid}/io", limit=4096) or "")
            disk_bytes += sum(map(int, io_bytes)) + page_bytes * sum(map(int, fields[9:11]))  # majflt, cmajflt: pages
            faults += sum(map(int, fields[7:9]))  # minflt, cminflt
            ticks += sum(map(int, fields[11:15]))  # utime, stime, cutime, cstime
    return Activity(disk_bytes, ticks / os.sysconf("SC_CLK_TCK"), faults)
