"""The process that kills a rank: small, locked into memory, without any blocking call but poll(2).

    python -I -S -B killer.py PROC LEASE_SECONDS

Its input is a socket: the listening one of sparkd-guard.socket, or one end of a pair, and then it ends with the agent
that holds the other. An agent sends the floor in bytes with the rank's pidfd, and stays connected. The rank is killed
where memory runs out, and where no agent has come for LEASE_SECONDS. No dataclasses: they would add 2.3 MB to its 4.
"""

from __future__ import annotations

import ctypes
import gc
import math
import os
import select
import signal
import socket
import sys
import time
from array import array
from contextlib import suppress

LOCKED, UNLOCKED, KILLED, ENDED, FAILED = "locked", "unlocked", "killed", "ended", "failed"
"""First words of the messages to an agent: a reason follows UNLOCKED and FAILED, an account of the kill KILLED."""

MIB = 1 << 20

FASTEST_BYTES_PER_SECOND = 5 << 30
"""Assumed maximum: twice the rate seen on GB10, where 7.4 GiB went in 3 s."""
SHORTEST_SECONDS = 0.02
"""At the maximum rate 100 MiB between two reads: a fifth of the default floor. A read takes 10 to 20 µs."""
LONGEST_SECONDS = 1.0
PRESSED_PERCENT = 30.0
"""Of the last ten seconds in which all work waited for memory: then twice the floor is the limit."""

SAMPLE_COUNT = 64
SAMPLE_SECONDS = 0.1
"""Between kept samples: together they span 6 s or more."""
AGES = (5.0, 3.0, 2.0, 1.0, 0.5, 0.2)
"""The quoted samples, in seconds before the kill."""

_AVAILABLE = b"MemAvailable:"
_FULL = b"full avg10="
_MCL_CURRENT, _MCL_FUTURE, _MCL_ONFAULT = 1, 2, 4
_PR_SET_NAME = 15


def is_short(available_bytes: int, full_avg10: float, floor_bytes: int) -> bool:
    pressed = full_avg10 >= PRESSED_PERCENT and available_bytes < 2 * floor_bytes
    return available_bytes < floor_bytes or pressed


def pause_seconds(available_bytes: int, floor_bytes: int) -> float:
    """Until the next read: at the maximum rate memory reaches the floor in this time."""
    return min(LONGEST_SECONDS, max(SHORTEST_SECONDS, (available_bytes - floor_bytes) / FASTEST_BYTES_PER_SECOND))


class Meter:
    """Reads MemAvailable and memory pressure without allocating: the files stay open, and share one buffer.

    Raises OSError and ValueError where available memory is unreadable. Pressure is 0 where the kernel has none.
    """

    def __init__(self, proc: str) -> None:
        self._meminfo = os.open(f"{proc}/meminfo", os.O_RDONLY | os.O_CLOEXEC)
        try:
            self._pressure = os.open(f"{proc}/pressure/memory", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            self._pressure = -1
        self._buffer = bytearray(4096)
        self._into = [self._buffer]

    def available_bytes(self) -> int:
        size = os.preadv(self._meminfo, self._into, 0)
        start = self._buffer.find(_AVAILABLE, 0, size)
        end = self._buffer.find(b"kB", start, size)
        if start < 0 or end < 0:
            raise ValueError("/proc/meminfo has no MemAvailable")
        return int(self._buffer[start + len(_AVAILABLE) : end]) * 1024

    def full_avg10(self) -> float:
        """Percent of the last ten seconds in which everything that had work waited for memory."""
        try:
            size = os.preadv(self._pressure, self._into, 0)
            start = self._buffer.find(_FULL, 0, size)
            return float(self._buffer[start + len(_FULL) : self._buffer.find(b" ", start + len(_FULL), size)])
        except (OSError, ValueError):
            return 0.0


class Samples:
    """The last samples (when, available bytes, pressure), in preallocated memory."""

    def __init__(self) -> None:
        self._when = array("d", bytes(8 * SAMPLE_COUNT))
        self._available = array("q", bytes(8 * SAMPLE_COUNT))
        self._pressure = array("d", bytes(8 * SAMPLE_COUNT))
        self._count = 0

    def put(self, when: float, available_bytes: int, full_avg10: float) -> None:
        """The newest is always kept. It replaces the previous one where that is close to its own predecessor."""
        newest, before = (self._count - 1) % SAMPLE_COUNT, (self._count - 2) % SAMPLE_COUNT
        if self._count < 2 or self._when[newest] - self._when[before] >= SAMPLE_SECONDS:
            newest = self._count % SAMPLE_COUNT
            self._count += 1
        self._when[newest] = when
        self._available[newest] = available_bytes
        self._pressure[newest] = full_avg10

    def kept(self) -> list[tuple[float, int, float]]:
        """Oldest first."""
        places = [number % SAMPLE_COUNT for number in range(max(0, self._count - SAMPLE_COUNT), self._count)]
        return [(self._when[i], self._available[i], self._pressure[i]) for i in places]


def describe_kill(samples: list[tuple[float, int, float]], floor_bytes: int) -> str:
    """One line: the memory left, the floor, and the last samples."""
    at, available, pressure = samples[-1]
    floor = f"the floor of {floor_bytes // MIB:,} MiB"
    found = f"{available // MIB:,} MiB available"
    if available >= floor_bytes:
        found += f" of twice {floor}, and all work stood still for memory"
    else:
        found += f", below {floor}"
    aged = ([one for one in samples if at - one[0] >= age] for age in AGES)
    quoted = dict.fromkeys(old_enough[-1] for old_enough in aged if old_enough)  # the youngest of each age, once
    history = ", ".join(f"{earlier // MIB:,} MiB {at - when:.1f} s before" for when, earlier, _ in quoted)
    # The rate of loss is that of the last tenth of a second or more.
    began, before, _ = next((one for one in reversed(samples) if at - one[0] >= SAMPLE_SECONDS), samples[0])
    rate = max(0.0, (before - available) / (at - began)) if at > began else 0.0
    return (
        f"memory ran out: {found}; the engine was killed ({history}{'; ' if history else ''}"
        f"it fell by {rate / MIB:,.0f} MiB/s, memory pressure {pressure:.0f} %)"
    )


class Killer:
    """Watches one rank, for one agent at a time: the last that came."""

    def __init__(self, proc: str, lease_seconds: float, kept: str) -> None:
        """`proc`: the folder of meminfo. `kept`: a file by which the next process finds the rank; empty for none."""
        self._proc, self._lease_seconds, self._kept = proc, lease_seconds, kept
        self._meter: Meter | None = None
        self._samples, self._lock = Samples(), ""
        self._poller = select.poll()
        self._door: socket.socket | None = None
        self._agent: socket.socket | None = None
        self._rank, self._floor_bytes, self._until = -1, 0, math.inf

    def run(self, given: socket.socket) -> None:
        """Until nothing is left to watch. Raises OSError, ValueError where memory can't be read."""
        if given.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
            self._door = given
            self._poller.register(given, select.POLLIN)
            self._turn(0)
        else:
            self._take_agent(given)
        if self._kept:
            self._resume()
        while self._agent is not None or (self._rank >= 0 and self._door is not None):
            self._turn(self._look())

    def send(self, line: str) -> None:
        """To the agent; where there is none, to the journal."""
        with suppress(OSError):
            if self._agent is None:
                os.write(2, f"{line}\n".encode())
            else:
                self._agent.send(line.encode(), socket.MSG_DONTWAIT)

    def _turn(self, seconds: float) -> None:
        for descriptor, _ in self._poller.poll(seconds * 1000):
            if descriptor == self._rank:
                self._forget_rank(ENDED)
            elif self._agent is not None and descriptor == self._agent.fileno():
                self._hear(self._agent)
            elif self._door is not None and descriptor == self._door.fileno():
                self._take_agent(self._door.accept()[0])

    def _look(self) -> float:
        """Kill the rank where that is due. Returns the seconds until the next look."""
        if (meter := self._meter) is None or self._rank < 0:
            return LONGEST_SECONDS
        available, pressure, now = meter.available_bytes(), meter.full_avg10(), time.monotonic()
        self._samples.put(now, available, pressure)
        if is_short(available, pressure, self._floor_bytes):
            self._kill(describe_kill(self._samples.kept(), self._floor_bytes))
        elif now >= self._until:
            self._kill(f"the rank was killed: its agent has been away for {self._lease_seconds:.0f} s")
        return pause_seconds(available, self._floor_bytes)

    def _kill(self, account: str) -> None:
        try:
            signal.pidfd_send_signal(self._rank, signal.SIGKILL)
            self._forget_rank(f"{KILLED} {account}")
        except ProcessLookupError:
            self._forget_rank(ENDED)

    def _forget_rank(self, line: str) -> None:
        self.send(line)
        self._close_rank()
        if self._kept:
            with suppress(OSError):
                _write(self._kept, "")

    def _close_rank(self) -> None:
        if self._rank >= 0:
            self._poller.unregister(self._rank)
            os.close(self._rank)
            self._rank = -1

    def _take_agent(self, agent: socket.socket) -> None:
        if self._agent is not None:
            self._leave()
        self._agent = agent
        self._poller.register(agent, select.POLLIN)

    def _leave(self) -> None:
        """The agent is gone, or another one has come: the rank is killed unless one names it again in time."""
        assert self._agent is not None
        self._poller.unregister(self._agent)
        self._agent.close()
        self._agent, self._until = None, time.monotonic() + self._lease_seconds

    def _hear(self, agent: socket.socket) -> None:
        try:
            said, descriptors, _, _ = socket.recv_fds(agent, 64, 2, socket.MSG_DONTWAIT)
        except OSError:
            said, descriptors = b"", []
        if not said.isdigit() or len(descriptors) != 1:
            for one in descriptors:
                os.close(one)
            self._leave()
            return
        self._close_rank()  # the same one, where an agent that was away has come back
        self._watch(descriptors[0], int(said))
        if self._kept:
            with suppress(OSError, ValueError, IndexError):
                _keep(self._kept, self._rank, self._floor_bytes)
        self.send(self._lock)

    def _watch(self, rank: int, floor_bytes: int) -> None:
        if self._meter is None:
            self._meter = Meter(self._proc)
            _try_a_kill(self._meter)
            self._lock = _lock()
        self._rank, self._floor_bytes, self._until = rank, floor_bytes, math.inf
        self._poller.register(rank, select.POLLIN)

    def _resume(self) -> None:
        """Watch the rank of the process before this one, which was killed: until an agent comes, or the lease ends."""
        with suppress(OSError, ValueError, IndexError):
            pid, began, floor_bytes = map(int, _read(self._kept).split())
            rank = os.pidfd_open(pid)
            if _start_time(pid) != began:  # looked at second: a pid that is held by a descriptor is not used again
                os.close(rank)
                return
            self._watch(rank, floor_bytes)
            self._until = time.monotonic() + self._lease_seconds


def _keep(path: str, rank: int, floor_bytes: int) -> None:
    pid = int(_read(f"/proc/self/fdinfo/{rank}").partition("\nPid:")[2].split()[0])
    _write(path, f"{pid} {_start_time(pid)} {floor_bytes}\n")


def _start_time(pid: int) -> int:
    """In clock ticks since boot. Raises OSError, ValueError."""
    return int(_read(f"/proc/{pid}/stat").rpartition(")")[2].split()[19])


def _read(path: str) -> str:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(descriptor, 4096).decode(errors="replace")
    finally:
        os.close(descriptor)


def _write(path: str, text: str) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        os.write(descriptor, text.encode())
    finally:
        os.close(descriptor)


def _try_a_kill(meter: Meter) -> None:
    """Run all code of a kill once, so that it is in memory before the lock."""
    tried = Samples()
    for when in (0.0, max(AGES)):
        tried.put(when, meter.available_bytes(), meter.full_avg10())
    describe_kill(tried.kept(), MIB)


def _lock() -> str:
    """Lock current and future pages when touched: 6 MiB of 16 mapped. Returns the message to an agent."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(_PR_SET_NAME, b"sparkd-guard", 0, 0, 0)
    if libc.mlockall(_MCL_CURRENT | _MCL_FUTURE | _MCL_ONFAULT) == 0:
        return LOCKED
    return f"{UNLOCKED} {os.strerror(ctypes.get_errno())}"


def main() -> int:
    gc.disable()
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    folder = os.environ.get("RUNTIME_DIRECTORY", "")
    killer = Killer(sys.argv[1], float(sys.argv[2]), f"{folder}/rank" if folder else "")
    try:
        killer.run(socket.socket(fileno=0))
    except (OSError, ValueError) as error:
        killer.send(f"{FAILED} {error}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
