"""The process that kills a rank: small, locked into memory, without any blocking call but poll(2).

    python -I -S -B -c BOOT PROC LEASE_SECONDS

Its input is a socket: the listening one of sparkd-guard.socket, or one end of a pair, and then it ends with the agent
that holds the other. An agent sends the floor in bytes with the rank's pidfd. The rank is killed where memory runs out,
and where the agent's process has ended and no other has named the rank for LEASE_SECONDS. No dataclasses, and nothing
of sparkd's but its neighbour.
"""

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

from sparkd.agent.engine.memory_guard import shortage

LOCKED, UNLOCKED, KILLED, ENDED, FAILED = "locked", "unlocked", "killed", "ended", "failed"
"""First words of the messages to an agent: a reason follows UNLOCKED and FAILED, an account of the kill KILLED."""

_MCL_CURRENT, _MCL_FUTURE, _MCL_ONFAULT = 1, 2, 4
_CREDENTIALS = struct.Struct("3i")
"""What SO_PEERCRED gives: pid, uid, gid of the process that has connected."""


class Killer:
    """Watches one rank, for one agent at a time: the last that came."""

    def __init__(self, proc: str, lease_seconds: float, record_file: str) -> None:
        """`proc`: the folder of meminfo. `record_file`: by it the next process finds the rank; empty for none."""
        self._proc, self._lease_seconds, self._record_file = proc, lease_seconds, record_file
        self._meter: shortage.Meter | None = None
        self._samples, self._lock_message = shortage.Samples(), ""
        self._poller = select.poll()
        self._listener: socket.socket | None = None
        self._connection: socket.socket | None = None
        self._rank_pidfd = self._agent_pidfd = -1
        """-1 for none. The agent is the one that has named the rank, as long as it runs; it may have no connection."""
        self._floor_bytes, self._lease_ends = 0, math.inf
        self._rank_pid, self._account = -1, ""
        """The rank's pid, kept after a kill, and the account of that kill."""

    def run(self, inherited: socket.socket) -> None:
        """Watch until the connection has gone; as the unit, until rank and agent have ended, too.

        Raises OSError, ValueError where memory can't be read.
        """
        if inherited.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
            self._listener = inherited
            self._poller.register(inherited, select.POLLIN)
            self._resume()
            if self._rank_pidfd < 0:
                self._handle_events(2.0)  # the connection by which systemd has started this process, or it has gone
        else:
            self._record_file = ""
            self._take_agent(inherited)
        while self._connection is not None or (
            max(self._rank_pidfd, self._agent_pidfd) >= 0 and self._listener is not None
        ):
            self._handle_events(self._check_memory())
        if self._record_file:
            with suppress(OSError):
                _write(self._record_file, "")

    def send(self, line: str) -> None:
        """Send the line to the agent. Without an agent, and always for a kill, it goes to the journal by stderr."""
        with suppress(OSError):
            if self._connection is None or line.startswith(KILLED):
                os.write(2, f"{line}\n".encode())
        with suppress(OSError):
            if self._connection is not None:
                self._connection.send(line.encode(), socket.MSG_DONTWAIT)

    def _handle_events(self, seconds: float) -> None:
        for descriptor, _ in self._poller.poll(seconds * 1000):
            if descriptor == self._rank_pidfd:
                self._forget_rank()
            elif descriptor == self._agent_pidfd:
                self._set_agent(-1)
            elif self._connection is not None and descriptor == self._connection.fileno():
                self._read_request(self._connection)
            elif self._listener is not None and descriptor == self._listener.fileno():
                self._take_agent(self._listener.accept()[0])

    def _check_memory(self) -> float:
        """Kill the rank where memory is short or the lease has ended. Returns the seconds until the next check."""
        if (meter := self._meter) is None or self._rank_pidfd < 0:
            return shortage.LONGEST_SECONDS
        available, pressure, now = meter.available_bytes(), meter.full_avg10(), time.monotonic()
        self._samples.put(now, available, pressure)
        if shortage.is_short(available, pressure, self._floor_bytes):
            self._kill(shortage.describe_kill(self._samples.kept(), self._floor_bytes))
        elif now >= self._lease_ends:
            self._kill(f"the rank was killed: its agent has been away for {self._lease_seconds:.0f} s")
        return shortage.pause_seconds(available, self._floor_bytes)

    def _kill(self, account: str) -> None:
        try:
            signal.pidfd_send_signal(self._rank_pidfd, signal.SIGKILL)
        except ProcessLookupError:
            self._forget_rank()
            return
        # The agent is still watched: it may re-exec itself (exec keeps pid and pidfd), and the new program has not read
        # the account.
        self._account = f"{KILLED} {account}"
        self.send(self._account)
        self._rank_pidfd = self._close_pidfd(self._rank_pidfd)

    def _forget_rank(self) -> None:
        """Report that the rank has ended by itself, and watch neither it nor its agent any longer."""
        self.send(ENDED)
        self._rank_pidfd, self._agent_pidfd = self._close_pidfd(self._rank_pidfd), self._close_pidfd(self._agent_pidfd)

    def _close_pidfd(self, pidfd: int) -> int:
        """Watch this process no longer. Returns -1, for the field that had its pidfd."""
        if pidfd >= 0:
            self._poller.unregister(pidfd)
            os.close(pidfd)
        return -1

    def _take_agent(self, agent: socket.socket) -> None:
        self._drop_agent()
        self._connection = agent
        self._poller.register(agent, select.POLLIN)

    def _drop_agent(self) -> None:
        """Close the connection. The agent may run on without it, with a guard of its own."""
        if self._connection is not None:
            self._poller.unregister(self._connection)
            self._connection.close()
            self._connection = None

    def _read_request(self, agent: socket.socket) -> None:
        """Read which rank to watch, and its floor. An agent that has closed, or sent something else, is dropped."""
        if (request := _receive_rank(agent)) is None:
            self._drop_agent()
            return
        self._close_pidfd(self._rank_pidfd)  # the same rank, where an agent that was away has come back
        agent_pid = _CREDENTIALS.unpack(agent.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))[0]
        self._watch(*request)
        is_same_agent = agent_pid == _find_pid(self._agent_pidfd)
        self._set_agent(_open_process(agent_pid))
        rank_pid = _find_pid(self._rank_pidfd)
        # -1: the rank that was killed is gone already.
        if self._account and is_same_agent and rank_pid in (self._rank_pid, -1):
            # The agent's new program, after an exec, has not read the account of the kill.
            self._rank_pidfd = self._close_pidfd(self._rank_pidfd)
            with suppress(OSError):
                agent.send(self._account.encode(), socket.MSG_DONTWAIT)
            return
        self._rank_pid, self._account = rank_pid, ""
        if self._record_file:
            with suppress(OSError, ValueError, IndexError):
                self._write_record(rank_pid, _start_time(rank_pid), agent_pid, _start_time(agent_pid))
        self.send(self._lock_message)

    def _write_record(self, *processes: int) -> None:
        """`processes`: pid and start time of the rank, then of its agent."""
        pid = os.getpid()
        _write(self._record_file, " ".join(map(str, (self._floor_bytes, *processes, pid, _start_time(pid)))))

    def _watch(self, rank_pidfd: int, floor_bytes: int) -> None:
        """Watch this rank; for the first one, run all code of a kill, and lock memory."""
        if self._meter is None:
            self._meter = shortage.Meter(self._proc)
            _rehearse_kill(self._meter)
            self._lock_message = _lock()
        self._rank_pidfd, self._floor_bytes = rank_pidfd, floor_bytes
        self._poller.register(rank_pidfd, select.POLLIN)

    def _set_agent(self, pidfd: int) -> None:
        """`pidfd`: of the agent, or -1 where it has ended: then the lease begins."""
        self._close_pidfd(self._agent_pidfd)
        self._agent_pidfd = pidfd
        self._lease_ends = math.inf if pidfd >= 0 else time.monotonic() + self._lease_seconds
        if pidfd >= 0:
            self._poller.register(pidfd, select.POLLIN)

    def _resume(self) -> None:
        """Watch the rank that an earlier killer watched until it was killed itself. Raises OSError, ValueError."""
        try:
            floor_bytes, rank_pid, rank_began, agent_pid, agent_began, *_ = map(int, _read(self._record_file).split())
        except (OSError, ValueError):  # nothing was watched
            return
        if (rank_pidfd := _open_process(rank_pid, rank_began)) >= 0:
            self._watch(rank_pidfd, floor_bytes)
            self._rank_pid = rank_pid
            self._set_agent(_open_process(agent_pid, agent_began))
            with suppress(OSError):
                self._write_record(rank_pid, rank_began, agent_pid, agent_began)


def _receive_rank(agent: socket.socket) -> tuple[int, int] | None:
    """The rank's pidfd and the floor in bytes; None where the agent has closed, or sent something else."""
    try:
        message, descriptors, _, _ = socket.recv_fds(agent, 64, 2, socket.MSG_DONTWAIT)
    except OSError:
        return None
    if message.isdigit() and len(descriptors) == 1:
        return descriptors[0], int(message)
    for descriptor in descriptors:
        os.close(descriptor)
    return None


def _open_process(pid: int, start_time: int | None = None) -> int:
    """Its pidfd; -1 where it has ended. Raises OSError."""
    try:
        pidfd = os.pidfd_open(pid)
    except ProcessLookupError:
        return -1
    # Read second: a process that has its pid now had it when the pidfd was opened, which thus is its own.
    with suppress(OSError, ValueError, IndexError):
        if start_time is None or _start_time(pid) == start_time:
            return pidfd
    os.close(pidfd)
    return -1


def _find_pid(pidfd: int) -> int:
    """The pid of a process by its pidfd; -1 where that has ended, 0 where it is unknown."""
    with suppress(OSError, ValueError, IndexError):
        return int(_read(f"/proc/self/fdinfo/{pidfd}").partition("\nPid:")[2].split()[0])
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


def _rehearse_kill(meter: shortage.Meter) -> None:
    """Run all code of a kill once, so that it is in memory before the lock."""
    samples = shortage.Samples()
    for at in (0.0, max(shortage.AGES)):
        samples.put(at, meter.available_bytes(), meter.full_avg10())
    shortage.describe_kill(samples.kept(), shortage.MIB)


def _lock() -> str:
    """Lock current and future pages when touched: 6 MiB of 16 mapped. Returns the message to an agent."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(15, b"sparkd-guard", 0, 0, 0)  # PR_SET_NAME
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
