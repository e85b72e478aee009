"""What the memory guard costs while memory is plentiful: its process, on this machine, beside a rank that sleeps."""

import os
import re
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.bed import BedError

from .figures import Figure, Limit, Spread
from .machine import load

SECONDS = 60.0
SETTLE_SECONDS = 2.0
FLOOR_BYTES = 1 << 20
"""Far below what any machine has: the pause between two looks is the longest."""
PSS_MIB, CPU_PERCENT, WAKEUPS = 8.0, 0.1, 2.0
_PSS = re.compile(r"^Pss:\s+(\d+) kB$", re.MULTILINE)
_SWITCHES = re.compile(r"ctxt_switches:\s+(\d+)$", re.MULTILINE)


def measure() -> tuple[Figure, ...]:
    with _standing() as proc:
        time.sleep(SETTLE_SECONDS)
        began, cpu, woken = time.monotonic(), _cpu_seconds(proc), _switches(proc)
        time.sleep(SECONDS)
        took = time.monotonic() - began
        percent, a_second = 100 * (_cpu_seconds(proc) - cpu) / took, (_switches(proc) - woken) / took
        pss = int(_PSS.findall((proc / "smaps_rollup").read_text())[0]) / 1024
    return (
        _figure("pss", "memory of the memory guard (PSS)", "MiB", round(pss, 1), PSS_MIB),
        _figure("cpu", "its CPU, memory plentiful, over 60 s", "% of a core", round(percent, 4), CPU_PERCENT),
        _figure("wakeups", "its wakeups", "/s", round(a_second, 2), WAKEUPS),
    )


@contextmanager
def _standing() -> Iterator[Path]:
    """The process of a guard that has begun to watch: its folder in /proc. It ends with what it watches."""
    from sparkd.agent.engine.memory_guard.guard import MemoryGuard
    from sparkd.base.lib.log import events
    from sparkd.base.lib.redaction import Redaction

    with subprocess.Popen(["sleep", "infinity"]) as rank:
        pidfd = os.pidfd_open(rank.pid)
        guard = MemoryGuard(FLOOR_BYTES, pidfd, events(lambda _priority, _line: None, Redaction()), lambda: None)
        try:
            guard.start()
            yield _child("sparkd-guard")
        finally:
            guard.close()
            rank.kill()
            os.close(pidfd)


def _child(name: str) -> Path:
    """Of this process, by the name that it gives itself once it has locked its memory."""
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        children = " ".join(one.read_text() for one in Path("/proc/self/task").glob("*/children")).split()
        for pid in children:
            if Path(f"/proc/{pid}/comm").read_text().strip() == name:
                return Path(f"/proc/{pid}")
        time.sleep(0.05)
    raise BedError(f"no {name} has come up")


def _switches(proc: Path) -> int:
    return sum(map(int, _SWITCHES.findall((proc / "status").read_text())))


def _cpu_seconds(proc: Path) -> float:
    """By the scheduler, which counts nanoseconds: 60 looks are less than one tick of /proc/PID/stat."""
    return int((proc / "schedstat").read_text().split()[0]) / 1e9


def _figure(name: str, what: str, unit: str, value: float, limit: float) -> Figure:
    return Figure(f"guard.{name}", what, unit, Spread((value,)), Limit(limit), load=load())
