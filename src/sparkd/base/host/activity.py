"""What processes do: bytes read and written, CPU time, page faults; and where in the kernel their threads wait."""

import os
import re
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from itertools import islice

from msgspec import Struct

from sparkd.base.host.files import Files
from sparkd.base.host.processes import GONE, Process, read_process
from sparkd.base.lib.text import sanitize

MAX_THREADS = 2000
"""A rank has some hundreds; an engine may make any number."""

_DISK = re.compile(r"^(?:read|write)_bytes: (\d+)$", re.MULTILINE)
_FRAME = re.compile(r"\] ([\w.]+)\+")


class Activity(Struct, frozen=True):
    """Sums since the processes began, with ended children. `faults`: page faults without a read (first touches)."""

    disk_bytes: int = 0
    """Read from disks and file servers, not from the page cache, and written to files on them: a download counts. A
    page fault with a read counts again as one page, for file systems that account for no reads (FUSE, 9p).
    """
    cpu_seconds: float = 0.0
    faults: int = 0


def read_activity(files: Files, processes: Sequence[Process]) -> Activity:
    """Sums over all processes that could be read before they ended. Raises OSError, ValueError."""
    disk_bytes, ticks, faults = 0, 0, 0
    for process in processes:
        with suppress(*GONE):
            fields = files.bytes(f"/proc/{process.pid}/stat", limit=4096).rpartition(b")")[2].split()
            io_bytes = _DISK.findall(files.text_if_any(f"/proc/{process.pid}/io", limit=4096) or "")
            disk_bytes += sum(map(int, io_bytes)) + 4096 * sum(map(int, fields[9:11]))  # majflt, cmajflt: pages
            faults += sum(map(int, fields[7:9]))  # minflt, cminflt
            ticks += sum(map(int, fields[11:15]))  # utime, stime, cutime, cstime
    return Activity(disk_bytes, ticks / os.sysconf("SC_CLK_TCK"), faults)


def read_waits(files: Files, processes: Sequence[Process], most: int = 4) -> tuple[str, frozenset[int]]:
    """Text of the `most` places where most threads wait, and the ids of threads stopped or uninterruptible now.

    Raises OSError.
    """
    # The kernel's functions that hold the threads of a stopped, traced or frozen process.
    halts = ("do_signal_stop", "ptrace_stop", "do_freezer_trap", "__refrigerator")
    places, halted_tids = Counter[str](), set[int]()
    threads = ((process, tid) for process in processes for tid in files.names_if_any(f"/proc/{process.pid}/task"))
    for process, tid in islice(threads, MAX_THREADS):
        with suppress(*GONE):
            if thread := read_process(files, f"{process.pid}/task/{tid}"):
                place = _read_place(files, f"/proc/{process.pid}/task/{tid}")
                if thread.state in "DTt" or place.startswith(halts):
                    halted_tids.add(int(tid))
                places[f"{process.comm} in {place or f'state {thread.state}'}"] += 1
    return ", ".join(f"{count} of {where}" for where, count in places.most_common(most)), frozenset(halted_tids)


def _read_place(files: Files, folder: str) -> str:
    """The kernel's functions in which a thread waits, innermost first; empty where the kernel does not show them."""
    with suppress(PermissionError, FileNotFoundError):  # the stack needs CAP_SYS_ADMIN, which the units do without
        return " < ".join(_FRAME.findall(files.text(f"{folder}/stack", limit=65536))[:3])
    with suppress(PermissionError, FileNotFoundError):
        place = sanitize(files.value(f"{folder}/wchan"), 64)
        return "" if place == "0" else place
    return ""
