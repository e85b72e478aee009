"""Reads the stacks of a rank's processes before it is ended: the kernel's, and Python's if py-spy is installed.

py-spy only reads memory (--nonblocking), and so needs no ptrace, which the units' system call filter refuses. The
engine decides what it reads, so its time, memory and output are bounded.
"""

import os
import re
import resource
import subprocess
import sys
import time
from collections.abc import Iterable
from contextlib import suppress

from msgspec import Struct

from sparkd.base.host.files import Files
from sparkd.base.host.processes import Process
from sparkd.base.host.waits import read_waits
from sparkd.base.lib import REINSTALL
from sparkd.base.lib.text import printable, sanitize

PROGRAMS = ("/usr/lib/sparkd/vendor/bin/py-spy", f"{sys.prefix}/bin/py-spy")
"""py-spy of the package, and of a virtual environment."""
PYTHON_SECONDS = 5.0
"""Limit for all processes at once: 0.2 s of CPU time each."""
OUTPUT_BYTES, MEMORY_BYTES = 128 << 10, 2 << 30
"""Limits of each py-spy: of what it writes, and of its address space."""
MOST_PROCESSES, MOST_PYTHON, MOST_PLACES = 32, 8, 200
"""Most processes whose stacks are read, most of these that py-spy reads, and most places in the kernel of one."""
_MOST_HELPFUL = ("VLLM::Worker", "VLLM::Engine", "VLLM::")
"""Beginnings of a process's name (15 characters at most), the most helpful stack first."""
_FRAME = re.compile(r"^Thread [^\n]*\n +([^\n]+)", re.MULTILINE)
_MAIN_FRAME = re.compile(r'^Thread \S{1,20} \([^\n"]{1,40}\): "MainThread"\n +([^\n]+)', re.MULTILINE)


class Stacks(Struct, frozen=True):
    text: str
    """All stacks, for a file."""
    count: int
    """How many processes they are of."""
    frame: str
    """The innermost frame of the first process that has a Python stack; empty where none has."""


def read_stacks(files: Files, processes: Iterable[Process], programs: Iterable[str] = PROGRAMS) -> Stacks:
    """Read all stacks. Takes seconds, and may hang with one of the processes. Raises OSError."""
    chosen = sorted((process for process in processes if not process.dead), key=_reading_order)[:MOST_PROCESSES]
    program = next((path for path in programs if os.access(path, os.X_OK)), "")
    python_stacks = _read_python_stacks(program, chosen[:MOST_PYTHON]) if program else {}  # each may take MEMORY_BYTES
    parts = [] if program else [f"no Python stacks: there is no {PROGRAMS[0]}: {REINSTALL}\n"]
    frames = list[str]()
    for process in chosen:
        places, text = read_waits(files, [process], MOST_PLACES).text, python_stacks.get(process.pid, "")
        name = f"process {process.pid} ({process.comm})"
        parts.append(f"== {name} in state {process.state}; its threads: {places}\n{text}\n")
        if frame := _MAIN_FRAME.search(text) or _FRAME.search(text):
            frames.append(f"{sanitize(frame[1], 160)} of {name}")
    return Stacks("\n".join(parts), len(chosen), next(iter(frames), ""))


def _reading_order(process: Process) -> tuple[bool, int, int]:
    """Sort key of a process: the lowest is read first, since only some stacks are read.

    Stopped processes (state T) come first: such a one hangs for certain. Then names decide, as _MOST_HELPFUL has them,
    and then the lower pid.
    """
    places = (place for place, name in enumerate(_MOST_HELPFUL) if process.comm.startswith(name))
    return process.state != "T", next(places, len(_MOST_HELPFUL)), process.pid


def _read_python_stacks(program: str, processes: Iterable[Process]) -> dict[int, str]:
    """Stacks by pid. All are read at the same time: a process that hangs in the kernel delays no other."""
    deadline, texts = time.monotonic() + PYTHON_SECONDS, dict[int, str]()
    outputs = {process.pid: os.fdopen(os.memfd_create("stacks"), "rb") for process in processes}
    running = dict[int, subprocess.Popen[bytes]]()
    try:
        for pid, output in outputs.items():
            running[pid] = _start_bounded([program, "dump", "--nonblocking", "--pid", str(pid)], output.fileno())
        for process in running.values():
            with suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, deadline - time.monotonic()))
    finally:
        for process in running.values():
            process.kill()  # without waiting for it: it may hang in the kernel
    for pid, output in outputs.items():
        with output:
            content = os.pread(output.fileno(), OUTPUT_BYTES, 0).decode("utf-8", "backslashreplace")
        if content.startswith("Process "):  # py-spy's header: the command line may have several lines
            content = content[content.rfind("\nPython v") + 1 :]
        texts[pid] = "\n".join(map(printable, content.splitlines()))
    return texts


def _start_bounded(command: list[str], output: int) -> subprocess.Popen[bytes]:
    """Start a program with the limits of memory and output."""
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, cwd="/", env={})
    for limit, most in ((resource.RLIMIT_FSIZE, OUTPUT_BYTES), (resource.RLIMIT_AS, MEMORY_BYTES)):
        with suppress(ProcessLookupError):
            resource.prlimit(process.pid, limit, (most, most))
    return process
