"""Runs a program of the operator within a time limit: a hook, or what sends a message or cuts a node's power."""

import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

from sparkd.base.lib.text import sanitize

DEADLINE_SECONDS = 30.0
OUTPUT_LIMIT_BYTES = 4096
"""How much of the output is kept; the rest is read and dropped, so that no program blocks on a full pipe."""
LOOK_SECONDS = 0.05
"""Pause between two looks at whether a program has ended, and at its output."""
Wait = Callable[[float], object]
"""Waits so many seconds: `MainLoop.wait`, or `time.sleep` in another thread. It may return early, and may raise."""
ENVIRONMENT = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LANG": "C.UTF-8"}
"""Environment of an operator's program. It has no SPARKD_ names: a sparkd that it calls would take them as settings."""


def run_program(
    command: Sequence[str], wait: Wait, env: Mapping[str, str], deadline_seconds: float, stdin: int = subprocess.DEVNULL
) -> tuple[int | None, bytes]:
    """Run a program. Returns its exit code (None where it was killed at the deadline) and its output.

    Its process group ends with it. Raises OSError where it can't be run.
    """
    deadline = time.monotonic() + deadline_seconds
    process = subprocess.Popen(
        command,
        stdin=stdin,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        cwd="/",
        env=dict(env),
        start_new_session=True,
    )
    try:
        has_ended, output = _await_end(process, wait, deadline)
    finally:
        # The program is not reaped yet, so the group of its pid is still its own.
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        with suppress(subprocess.TimeoutExpired):
            process.wait(5.0)
    return (process.returncode if has_ended else None), output


def _await_end(process: subprocess.Popen[bytes], wait: Wait, deadline: float) -> tuple[bool, bytes]:
    """Whether the program ended in time, and its output until then: a child of it may keep the pipe open."""
    assert process.stdout is not None
    has_ended, output = False, b""
    with process.stdout as pipe:
        os.set_blocking(pipe.fileno(), False)
        while not has_ended and (left_seconds := deadline - time.monotonic()) > 0:
            # Popen.poll() would reap it.
            has_ended = os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
            output, has_more = _read_output(pipe.fileno(), output)
            if not has_ended:
                wait(0.0 if has_more else min(LOOK_SECONDS, left_seconds))
    return has_ended, output


def _read_output(pipe: int, output: bytes) -> tuple[bytes, bool]:
    """The output with what is readable now, and whether there was any. Bounded, so that deadlines hold."""
    for count in range(64):
        try:
            chunk = os.read(pipe, 65536)
        except BlockingIOError:
            chunk = b""
        if not chunk:
            return output, count > 0
        output = (output + chunk)[:OUTPUT_LIMIT_BYTES]
    return output, True


def first_line(output: bytes) -> str:
    """The first line that is not blank; empty where there is none."""
    lines = output.decode("utf-8", "backslashreplace").splitlines()
    return sanitize(next((line.strip() for line in lines if line.strip()), ""))
