"""RDMA between two nodes for some seconds, by perftest's ib_write_bw on both, where they have it and a device."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import time
from contextlib import suppress

PROGRAM = "ib_write_bw"
PORT, SECONDS, MARGIN_SECONDS, QUEUE_PAIRS = 18515, 4, 1, 8
"""perftest's own port. Eight queue pairs found the known fault (NVIDIA/dgx-spark-playbooks, pull request 108)."""
START_SECONDS, TRIES, TRY_AGAIN_SECONDS = 10.0, 5, 0.5
"""For both to meet. The one that listens is slower than the one that connects."""
OUTPUT_LIMIT = 1 << 16
_RESULT = re.compile(
    r"^[ \t]*\d+[ \t]+\d+[ \t]+\d{1,9}\.\d+[ \t]+(\d{1,9}\.\d+)[ \t]+\d{1,9}\.\d+[ \t]*$", re.MULTILINE
)
"""Bytes, iterations, peak (0 in a test of some seconds), average, messages."""


class RdmaError(Exception):
    """Why there is no figure."""


def is_installed() -> bool:
    return shutil.which(PROGRAM) is not None


def command(device: str, to: str = "") -> list[str]:
    """Of the side that connects, or without `to` of the one that listens. rdma_cm finds the GID of the address."""
    length = ["-D", str(SECONDS), "-f", str(MARGIN_SECONDS)]
    words = [PROGRAM, "-R", "-F", "-d", device, "-p", str(PORT), "-q", str(QUEUE_PAIRS), *length, "--report_gbits"]
    return [*words, to] if to else words


def parse(printed: str) -> float:
    """Gb/s on average. Raises RdmaError."""
    found = _RESULT.findall(printed[:OUTPUT_LIMIT])
    if len(found) != 1:
        rest = printed.strip("- \n")[-80:]
        raise RdmaError(f"{PROGRAM} printed no figure, but ends in: {rest!r}")
    return float(found[0])


def listen(device: str) -> subprocess.Popen[bytes]:
    """To be ended by `end`; without it, by itself: alone, the program would wait for ever. Raises OSError."""
    quiet, words = subprocess.DEVNULL, ["timeout", "--signal=KILL", f"{TRIES * START_SECONDS:.0f}", *command(device)]
    return subprocess.Popen(words, stdin=quiet, stdout=quiet, stderr=quiet, start_new_session=True)


def end(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)  # not reaped yet, so the group is its own
    with suppress(subprocess.TimeoutExpired):
        process.wait(START_SECONDS)


def measure(device: str, to: str) -> float:
    """Gb/s that this node writes to the other. Raises RdmaError."""
    limit = START_SECONDS + SECONDS
    said = ""
    for _ in range(TRIES):
        time.sleep(TRY_AGAIN_SECONDS)
        try:
            done = subprocess.run(command(device, to), capture_output=True, text=True, errors="replace", timeout=limit)
        except (OSError, subprocess.TimeoutExpired) as error:
            raise RdmaError(f"{PROGRAM}: {error}") from None
        if done.returncode == 0:
            return parse(done.stdout)
        said = (done.stderr or done.stdout).strip().rpartition("\n")[2]
    raise RdmaError(f"{PROGRAM}: {said[:200] or 'it failed'}")
