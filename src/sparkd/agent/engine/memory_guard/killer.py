"""The process that kills a rank: small, locked into memory, without any blocking call but poll(2).

    python -I -S -B -c BOOT PROC LEASE_SECONDS

Its input is a socket: the listening one of sparkd-guard.socket, or one end of a pair, and then it ends with the agent
that holds the other. An agent sends the floor in bytes with the rank's pidfd. The rank is killed where memory runs out,
and where the agent's process has ended and no other has named the rank for LEASE_SECONDS. No dataclasses, and nothing
of sparkd's but its neighbour.
"""

from __future__ import annotations

import ctypes
import gc
import math
import os
import select
import signal
import socket
import struct
import sys
import time
from contextlib import suppress

from sparkd.agent.engine.memory_guard.shortage import (
    AGES,
    LONGEST_SECONDS,
    MIB,
    Meter,
    Samples,
    describe_kill,
    is_short,
    pause_seconds,
)

LOCKED, UNLOCKED, KILLED, ENDED, FAILED = "locked", "unlocked", "killed", "ended", "failed"
"""First words of the messages to an agent: a reason follows UNLOCKED and FAILED, an account of the kill KILLED."""

FIRST_SECONDS = 2.0
"""Time for the agent whose connection has started this process."""

_MCL_CURRENT, _MCL_FUTURE, _MCL_ONFAULT = 1, 2, 4
_PR_SET_NAME = 15
_CREDENTIALS = struct.Struct("3i")
"""What SO_PEERCRED gives: pid, uid, gid of the process that has connected."""


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
        self._rank = self._owner = -1
        """Descriptors of processes. The owner is the agent that has named the rank; -1 once it has ended."""
        self._floor_bytes, self._until = 0, math.inf
        self._pid, self._account = -1, ""
        """The rank's pid, also once it was killed, and the account of that."""

    def run(self, connection: socket.socket) -> None:
        """Watch until nothing is left to. Raises OSError, ValueError where memory can't be read."""
        if connection.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
            self._door = connection
            self._poller.register(connection, select.POLLIN)
            self._resume()
            if self._rank < 0:
                self._turn(FIRST_SECONDS)
        else:
            self._kept = ""
            self._take_agent(connection)
        while self._agent is not None or (max(self._rank, self._owner) >= 0 and self._door is not None):
            self._turn(self._look())
        if self._kept:
            with suppress(OSError):
                _write(self._kept, "")

    def send(self, line: str) -> None:
        """Send it to the agent; where there is none, and what it has killed, to the journal."""
        with suppress(OSError):
            if self._agent is None or line.startswith(KILLED):
                os.write(2, f"{line}\n".encode())
        with suppress(OSError):
            if self._agent is not None:
                self._agent.send(line.encode(), socket.MSG_DONTWAIT)

    def _turn(self, seconds: float) -> None:
        for descriptor, _ in self._poller.poll(seconds * 1000):
            if descriptor == self._rank:
                self._forget_rank()
            elif descriptor == self._owner:
                self._own(-1)
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
        except ProcessLookupError:
            self._forget_rank()
            return
        # The owner stays: it may be becoming another program, which needs the account, too.
        self._account = f"{KILLED} {account}"
        self.send(self._account)
        self._rank = self._close(self._rank)

    def _forget_rank(self) -> None:
        """Which has ended by itself."""
        self.send(ENDED)
        self._rank, self._owner = self._close(self._rank), self._close(self._owner)

    def _close(self, process: int) -> int:
        if process >= 0:
            self._poller.unregister(process)
            os.close(process)
        return -1

    def _take_agent(self, agent: socket.socket) -> None:
        self._leave()
        self._agent = agent
        self._poller.register(agent, select.POLLIN)

    def _leave(self) -> None:
        """The connection's end is none of the agent's, which may have a guard of its own."""
        if self._agent is not None:
            self._poller.unregister(self._agent)
            self._agent.close()
            self._agent = None

    def _hear(self, agent: socket.socket) -> None:
        try:
            said, descriptors, _, _ = socket.recv_fds(agent, 64, 2, socket.MSG_DONTWAIT)
        except OSError:
            said, descriptors = b"", []
        if not said.isdigit() or len(descriptors) != 1:
            for descriptor in descriptors:
                os.close(descriptor)
            self._leave()
            return
        self._close(self._rank)  # the same one, where an agent that was away has come back
        pid = _CREDENTIALS.unpack(agent.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))[0]
        self._watch(descriptors[0], int(said))
        again = pid == _find_pid(self._owner)
        self._own(_open_process(pid))
        rank = _find_pid(self._rank)
        if self._account and again and rank in (self._pid, -1):  # of an agent that has become another program
            self._rank = self._close(self._rank)
            with suppress(OSError):
                agent.send(self._account.encode(), socket.MSG_DONTWAIT)
            return
        self._pid, self._account = rank, ""
        if self._kept:
            with suppress(OSError, ValueError, IndexError):
                self._keep(rank, _start_time(rank), pid, _start_time(pid))
        self.send(self._lock)

    def _keep(self, *processes: int) -> None:
        _write(self._kept, " ".join(map(str, (self._floor_bytes, *processes, os.getpid()))))

    def _watch(self, rank: int, floor_bytes: int) -> None:
        if self._meter is None:
            self._meter = Meter(self._proc)
            _try_a_kill(self._meter)
            self._lock = _lock()
        self._rank, self._floor_bytes = rank, floor_bytes
        self._poller.register(rank, select.POLLIN)

    def _own(self, owner: int) -> None:
        """`owner` -1: it has ended, and the lease begins."""
        self._close(self._owner)
        self._owner, self._until = owner, math.inf if owner >= 0 else time.monotonic() + self._lease_seconds
        if owner >= 0:
            self._poller.register(owner, select.POLLIN)

    def _resume(self) -> None:
        """Watch the rank of the process before this one, which was killed. Raises OSError, ValueError."""
        try:
            floor_bytes, rank, rank_began, owner, owner_began, _ = map(int, _read(self._kept).split())
        except (OSError, ValueError):  # nothing was watched
            return
        if (descriptor := _open_process(rank, rank_began)) >= 0:
            self._watch(descriptor, floor_bytes)
            self._pid = rank
            self._own(_open_process(owner, owner_began))
            with suppress(OSError):
                self._keep(rank, rank_began, owner, owner_began)


def _open_process(pid: int, start_time: int | None = None) -> int:
    """Its pidfd; -1 where it has ended. Raises OSError."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return -1
    # Looked at second: a pid that is held by a descriptor is not used again.
    with suppress(OSError, ValueError, IndexError):
        if start_time is None or _start_time(pid) == start_time:
            return descriptor
    os.close(descriptor)
    return -1


def _find_pid(descriptor: int) -> int:
    """The pid of a process by its pidfd; -1 where that has ended, 0 where it is unknown."""
    with suppress(OSError, ValueError, IndexError):
        return int(_read(f"/proc/self/fdinfo/{descriptor}").partition("\nPid:")[2].split()[0])
    return 0


def _start_time(pid: int) -> int:
    """Clock ticks since boot. Raises OSError, ValueError."""
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
