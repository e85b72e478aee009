"""Processes by identity: a pid and its start time, so that a reused pid is never taken for ours."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from .command import BedError

Answer = TypeVar("Answer")


@dataclass(frozen=True)
class Identity:
    pid: int
    start: int  # in clock ticks since boot; the kernel's field 22 of /proc/PID/stat

    @classmethod
    def of(cls, pid: int) -> Identity:
        stat = _stat(pid)
        if stat is None:
            raise ProcessLookupError(f"no process {pid}")
        return cls(pid, int(stat[19]))

    @property
    def alive(self) -> bool:
        stat = _stat(self.pid)
        return stat is not None and int(stat[19]) == self.start and stat[0] not in "ZX"

    def send(self, number: int) -> None:
        """Signal it, if it still is the same process."""
        try:
            handle = os.pidfd_open(self.pid)
        except ProcessLookupError:
            return
        try:
            if self.alive:
                signal.pidfd_send_signal(handle, number)
        except ProcessLookupError:
            pass
        finally:
            os.close(handle)

    def end(self, seconds: float = 20) -> None:
        self.send(signal.SIGKILL)
        wait_for(lambda: not self.alive, seconds, f"the end of process {self.pid}")


def identities(pids: Iterable[int]) -> list[Identity]:
    """Of those that still exist."""
    found: list[Identity] = []
    for pid in list(pids):
        with contextlib.suppress(ProcessLookupError):
            found.append(Identity.of(pid))
    return found


def alive(pid: int) -> bool:
    """Neither gone nor a zombie."""
    stat = _stat(pid)
    return stat is not None and stat[0] not in "ZX"


def _stat(pid: int) -> list[str] | None:
    """The fields after the command's name: state first, start time at 19."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None


def children(pid: int) -> list[int]:
    pids: list[int] = []
    with contextlib.suppress(OSError):  # it, or one of its threads, ended meanwhile
        for task in Path(f"/proc/{pid}/task").glob("*/children"):
            with contextlib.suppress(OSError):
                pids += [int(word) for word in task.read_text().split()]
    return pids


def nested_pids(pid: int) -> list[int]:
    """Its pid in our pid namespace, in the next one down, and so on to its own."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return []
    match = re.search(r"^NSpid:\s+(.*)$", status, re.MULTILINE)
    return [int(word) for word in match[1].split()] if match else []


def command_line(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    except OSError:
        return ""


def command_name(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().rstrip("\n")
    except OSError:
        return ""


def wait_for(look: Callable[[], Answer], seconds: float, what: str, pause: float = 0.02) -> Answer:
    """The first true answer of `look`; BedError when none comes in time."""
    deadline = time.monotonic() + seconds
    while not (answer := look()):
        if time.monotonic() > deadline:
            raise BedError(f"waited {seconds:g} s without result for {what}")
        time.sleep(pause)
        pause = min(pause * 1.3, 0.25)
    return answer


def descendants(pid: int) -> Iterator[int]:
    for child in children(pid):
        yield child
        yield from descendants(child)
