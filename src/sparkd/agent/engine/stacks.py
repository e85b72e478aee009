"""The stacks of a rank's processes before it is ended: the kernel's, and Python's by py-spy where this node has it.

py-spy only reads memory (--nonblocking), and so needs no ptrace, which the units' system call filter refuses. What it
reads may be anybody's: its time, memory and output are bounded.
"""

from __future__ import annotations

import os
import re
import resource
import subprocess
import sys
import time
from collections.abc import Iterable
from contextlib import suppress

from msgspec import Struct

from sparkd.base.host.activity import read_waits
from sparkd.base.host.files import Files
from sparkd.base.host.processes import Process
from sparkd.base.lib.text import printable, sanitize

PROGRAMS = ("/usr/lib/sparkd/vendor/bin/py-spy", f"{sys.prefix}/bin/py-spy")
"""The package's, and a virtual environment's."""
PYTHON_SECONDS = 5.0
"""Limit for all processes at once: 0.2 s of CPU time each."""
OUTPUT_BYTES, MEMORY_BYTES = 128 << 10, 2 << 30
"""Limits of each py-spy: of what it writes, and of its address space."""
MOST_PROCESSES, MOST_PYTHON, MOST_PLACES = 32, 8, 200
"""Processes whose stacks are read, those of them that py-spy reads, and places of one in the kernel."""
_MOST_HELPFUL = ("VLLM::Worker", "VLLM::Engine", "VLLM::")
"""Beginnings of a process's name, which has at most 15 characters: those whose stack helps most come first."""
_FRAME = re.compile(r"^Thread [^\n]*\n +([^\n]+)", re.MULTILINE)
_MAIN_FRAME = re.compile(r'^Thread \S{1,20} \([^\n"]{1,40}\): "MainThread"\n +([^\n]+)', re.MULTILINE)


class Stacks(Struct, frozen=True):
    text: str
    count: int
    """How many processes it has."""
    frame: str
    """The innermost one of the first process that has a Python stack; empty where none has."""


def read_stacks(files: Files, processes: Iterable[Process], programs: Iterable[str] = PROGRAMS) -> Stacks:
    """Takes seconds, and may hang with one of the processes. Raises OSError."""
    chosen = sorted((process for process in processes if not process.dead), key=_order)[:MOST_PROCESSES]
    program = next((path for path in programs if os.access(path, os.X_OK)), "")
    python = _read_python(program, chosen[:MOST_PYTHON]) if program else {}  # each may take MEMORY_BYTES
    parts = [] if program else [f"no Python stacks: there is no {PROGRAMS[0]}; sudo apt install --reinstall sparkd\n"]
    frames = list[str]()
    for process in chosen:
        places, text = read_waits(files, [process], MOST_PLACES)[0], python.get(process.pid, "")
        name = f"process {process.pid} ({process.comm})"
        parts.append(f"== {name} in state {process.state}; its threads: {places}\n{text}\n")
        if frame := _MAIN_FRAME.search(text) or _FRAME.search(text):
            frames.append(f"{sanitize(frame[1], 160)} of {name}")
    return Stacks("\n".join(parts), len(chosen), next(iter(frames), ""))


def _order(process: Process) -> tuple[bool, int, int]:
    """Sort key: a stopped process first, then those that compute."""
    known = (index for index, name in enumerate(_MOST_HELPFUL) if process.comm.startswith(name))
    return process.state != "T", next(known, len(_MOST_HELPFUL)), process.pid


def _read_python(program: str, processes: Iterable[Process]) -> dict[int, str]:
    """Stacks by pid. They are read all at once: a process that hangs in the kernel delays no other."""
    deadline, texts = time.monotonic() + PYTHON_SECONDS, dict[int, str]()
    outputs = {process.pid: os.fdopen(os.memfd_create("stacks"), "rb") for process in processes}
    running = dict[int, subprocess.Popen[bytes]]()
    try:
        for pid, output in outputs.items():
            running[pid] = _start([program, "dump", "--nonblocking", "--pid", str(pid)], output.fileno())
        for process in running.values():
            with suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, deadline - time.monotonic()))
    finally:
        for process in running.values():
            process.kill()  # not awaited: it may hang in the kernel
    for pid, output in outputs.items():
        with output:
            content = os.pread(output.fileno(), OUTPUT_BYTES, 0).decode("utf-8", "backslashreplace")
        if content.startswith("Process "):  # py-spy's header: the command line may have several lines
            content = content[content.rfind("\nPython v") + 1 :]
        texts[pid] = "\n".join(map(printable, content.splitlines()))
    return texts


def _start(command: list[str], output: int) -> subprocess.Popen[bytes]:
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, cwd="/", env={})
    for limit, most in ((resource.RLIMIT_FSIZE, OUTPUT_BYTES), (resource.RLIMIT_AS, MEMORY_BYTES)):
        with suppress(ProcessLookupError):
            resource.prlimit(process.pid, limit, (most, most))
    return process
