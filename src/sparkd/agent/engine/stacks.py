"""The stacks of a rank's processes before it is ended: the kernel's, and Python's by py-spy where this node has it.

py-spy reads another process's memory and stops it nowhere (--nonblocking), so that it needs no ptrace, which the units'
system call filter refuses. What it reads may be anybody's: its time, memory and output are bounded.
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

from sparkd.base.host.activity import list_threads
from sparkd.base.host.files import Files
from sparkd.base.host.processes import Process
from sparkd.base.lib.text import printable, sanitize

PROGRAMS = ("/usr/lib/sparkd/vendor/bin/py-spy", f"{sys.prefix}/bin/py-spy")
"""Of the package, and of a virtual environment."""
PYTHON_SECONDS = 5.0
"""For all processes at once: 0.2 s of CPU time each."""
OUTPUT_BYTES, MEMORY_BYTES = 128 << 10, 2 << 30
MOST_PROCESSES = 32
_RANKED = ("VLLM::Worker", "VLLM::Engine", "VLLM::")
"""Whose stack tells most; comm has 15 characters."""
_MAIN = re.compile(r"^Thread [^\n]*MainThread[^\n]*\n +([^\n]+)", re.MULTILINE)
_ANY = re.compile(r"^Thread [^\n]*\n +([^\n]+)", re.MULTILINE)


class Stacks(Struct, frozen=True):
    text: str
    count: int
    """Of the processes in it."""
    frame: str
    """Where the process is that hangs, as far as that can be known; empty where its stack could not be read."""


def read_stacks(files: Files, processes: Iterable[Process], programs: Iterable[str] = PROGRAMS) -> Stacks:
    """Takes seconds, and may hang with one of the processes. Raises OSError."""
    chosen = sorted((one for one in processes if not one.dead), key=_rank)[:MOST_PROCESSES]
    program = next((one for one in programs if os.access(one, os.X_OK)), "")
    python = _read_python(program, chosen) if program else {}
    missing = "" if program else f"no Python stacks: there is no {PROGRAMS[0]}; sudo apt install --reinstall sparkd\n"
    parts, frames = [missing], list[str]()
    for one in chosen:
        kernel, text = list_threads(files, one), python.get(one.pid, "")
        parts.append("\n".join((f"== process {one.pid} ({one.comm}) in state {one.state}", *kernel, text, "")))
        if found := _MAIN.search(text) or _ANY.search(text):
            frames.append(f"{sanitize(found[1], 160)} of process {one.pid} ({one.comm})")
    return Stacks("\n".join(parts), len(chosen), frames[0] if frames else "")


def _rank(process: Process) -> tuple[bool, int, int]:
    """The one that hangs first: a stopped one, else the one that computes."""
    known = (index for index, name in enumerate(_RANKED) if process.comm.startswith(name))
    return process.state != "T", next(known, len(_RANKED)), process.pid


def _read_python(program: str, processes: Iterable[Process]) -> dict[int, str]:
    """By pid. All at once: a process that hangs in the kernel delays no other."""
    running = dict[int, tuple[subprocess.Popen[bytes], int]]()
    deadline = time.monotonic() + PYTHON_SECONDS
    for one in processes:
        output = os.memfd_create("stacks")
        command = [program, "dump", "--nonblocking", "--pid", str(one.pid)]
        with suppress(OSError):
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, cwd="/", env={})
            running[one.pid] = process, output
            for limit, most in ((resource.RLIMIT_FSIZE, OUTPUT_BYTES), (resource.RLIMIT_AS, MEMORY_BYTES)):
                with suppress(ProcessLookupError):
                    resource.prlimit(process.pid, limit, (most, most))
            continue
        os.close(output)
    texts = {}
    for pid, (process, output) in running.items():
        try:
            process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()  # not awaited: it may hang in the kernel
        content = os.pread(output, OUTPUT_BYTES, 0).decode("utf-8", "backslashreplace")
        os.close(output)
        if content.startswith("Process "):  # and its command line, of any number of lines
            content = content[content.rfind("\nPython v") + 1 :]
        texts[pid] = "\n".join(map(printable, content.splitlines()))
    return texts
