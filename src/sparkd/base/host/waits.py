"""Where in the kernel the threads of processes wait."""

import re
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from itertools import islice
from typing import NamedTuple

from sparkd.base.host.files import Files
from sparkd.base.host.processes import GONE, Process, read_process
from sparkd.base.lib.text import sanitize

MAX_THREADS = 2000
"""A rank has some hundreds; an engine may make any number."""
_FRAME = re.compile(r"\] ([\w.]+)\+")
_HALTS = ("do_signal_stop", "ptrace_stop", "do_freezer_trap", "__refrigerator")
"""The kernel's functions that hold the threads of a stopped, traced or frozen process."""


class Waits(NamedTuple):
    text: str
    """The places where most threads wait, for people."""
    halted_tids: frozenset[int]
    """Threads that are stopped or uninterruptible now."""


def read_waits(files: Files, processes: Sequence[Process], most: int = 4) -> Waits:
    """Where the threads of these processes wait; the text names `most` places. Raises OSError."""
    places, halted_tids = Counter[str](), set[int]()
    threads = ((process, tid) for process in processes for tid in files.names_if_any(f"/proc/{process.pid}/task"))
    for process, tid in islice(threads, MAX_THREADS):
        with suppress(*GONE):
            if thread := read_process(files, f"{process.pid}/task/{tid}"):
                place = _read_place(files, f"/proc/{process.pid}/task/{tid}")
                if thread.state in "DTt" or place.startswith(_HALTS):
                    halted_tids.add(int(tid))
                places[f"{process.comm} in {place or f'state {thread.state}'}"] += 1
    text = ", ".join(f"{count} of {where}" for where, count in places.most_common(most))
    return Waits(text, frozenset(halted_tids))


def _read_place(files: Files, folder: str) -> str:
    """The kernel's functions in which a thread waits, innermost first; empty where the kernel does not show them."""
    with suppress(PermissionError, FileNotFoundError):  # the stack needs CAP_SYS_ADMIN, which the units do without
        return " < ".join(_FRAME.findall(files.text(f"{folder}/stack", limit=65536))[:3])
    with suppress(PermissionError, FileNotFoundError):
        place = sanitize(files.value(f"{folder}/wchan"), 64)
        return "" if place == "0" else place
    return ""
