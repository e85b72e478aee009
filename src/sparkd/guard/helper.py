"""The process that watches memory: small, locked into memory, with nothing to wait for but time.

    python -I -S -c BOOT FOLDER FLOOR_BYTES RANK_PIDFD PROC

It kills the rank by its pidfd, then tells the agent on its output. It ends when the rank has ended, or the agent: its
input is a pipe that only the agent holds open.
"""

from __future__ import annotations

import ctypes
import gc
import os
import select
import signal
import sys
import time

from sparkd.guard import KILLED, LOCKED, UNLOCKED
from sparkd.guard.meter import Meter
from sparkd.guard.rule import pause_seconds, short
from sparkd.guard.samples import Samples

_MCL_CURRENT, _MCL_FUTURE, _MCL_ONFAULT = 1, 2, 4
_PR_SET_NAME = 15


def watch(meter: Meter, samples: Samples, floor_bytes: int, rank: int, agent: int) -> bool:
    """Until memory is short and the rank has been killed for it (true), or one of them has ended."""
    poller = select.poll()
    poller.register(rank, select.POLLIN)
    poller.register(agent, select.POLLIN)
    while True:
        available = meter.available_bytes()
        pressure = meter.full_avg10()
        samples.put(time.monotonic(), available, pressure)
        if short(available, pressure, floor_bytes):
            return _kill(rank)
        if poller.poll(pause_seconds(available, floor_bytes) * 1000):
            return False


def _kill(rank: int) -> bool:
    try:
        signal.pidfd_send_signal(rank, signal.SIGKILL)
    except ProcessLookupError:
        return False
    return True


def _lock() -> str:
    """What is in memory stays there, and what comes to be. Locked as it is touched: 6 MiB, of 16 that are mapped."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(_PR_SET_NAME, b"sparkd-guard", 0, 0, 0)
    if libc.mlockall(_MCL_CURRENT | _MCL_FUTURE | _MCL_ONFAULT) == 0:
        return LOCKED
    return f"{UNLOCKED} {os.strerror(ctypes.get_errno())}"


def _say(text: str) -> None:
    os.write(1, text.encode())


def main() -> int:
    floor_bytes, rank, proc = int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
    gc.disable()
    meter, samples = Meter(proc), Samples()
    # Everything that a kill needs is run through once, so that it is in memory before that is locked.
    samples.put(time.monotonic(), meter.available_bytes(), meter.full_avg10())
    samples.lines()
    try:
        signal.pidfd_send_signal(rank, 0)
    except ProcessLookupError:
        return 0
    _say(_lock() + "\n")
    if watch(meter, samples, floor_bytes, rank, 0):
        _say(f"{KILLED}\n{samples.lines()}")
    return 0
