"""The agent's side of the memory guard: names the rank to a killer, or to the next one, and reads what it reports."""

import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Literal

from msgspec import Struct, field

import sparkd
from sparkd.agent.engine.memory_guard.killer import ENDED, KILLED, LOCKED, UNLOCKED
from sparkd.agent.engine.memory_guard.shortage import MIB
from sparkd.base.lib import start_thread
from sparkd.base.lib.errors import MemoryGuardError
from sparkd.base.lib.log import Events

RETRY_SECONDS = 1.0
"""Pause before the next killer is tried."""
HINT = "stop other work, lower gpu_memory_utilization, max-model-len or max-num-seqs, or memory.floor_mib"
UNIT_SOCKET = "/run/sparkd-guard.sock"
UNIT_HINT = "for the next engine: sudo systemctl unmask sparkd-guard.socket; sudo systemctl start sparkd-guard.socket"
BOOT = (
    "import sys; sys.path.insert(0, '{}'); from sparkd.agent.engine.memory_guard.killer import main; sys.exit(main())"
)
"""Python that runs the killer; {} is the folder that has this package."""
ANSWER_SECONDS = 10.0
"""Limit for a killer to start and lock its memory: half a second on a loaded machine."""
_FOLDER = Path(sparkd.__file__).parents[1]
GuardState = Literal["", "off", "starting", "watching", "unlocked", "failed"]
"""Empty after `close`. Unlocked: it works, but may be swapped out and late."""


class MemoryGuard(Struct):
    """Watches memory from `start` until the rank ends or `close`.

    The killer is the unit sparkd-guard, which outlives the agent. Where there is no such unit, as when sparkd is run
    from its source, or where it gives no answer, the killer is a child process of the agent.
    """

    floor_bytes: int
    """0: the unit kills the rank only where no agent comes back."""
    pidfd: int
    events: Events
    wake: Callable[[], None]
    """Called when `over` is set."""
    proc: str = "/proc"
    """The folder that has meminfo and pressure."""
    unit_socket: str = UNIT_SOCKET
    """Path of the socket of sparkd-guard."""
    boot: str = BOOT
    """Python of the child process."""
    answer_seconds: float = ANSWER_SECONDS
    """A killer that is silent for so long is given up."""
    state: GuardState = "starting"
    """Any thread may read it."""
    over: threading.Event = field(default_factory=threading.Event)
    """Set once what `raise_if_killed` does is final."""
    _uses_unit: bool = True
    """Whether the unit is tried: not any more, once it gave no answer."""
    _killer: socket.socket | None = None
    _closing: threading.Event = field(default_factory=threading.Event)
    _reported: set[str] = field(default_factory=set)
    """What was logged once already."""
    _account: str = ""
    """The killer's account of the kill; empty where there was none."""
    _thread: threading.Thread = field(default_factory=threading.Thread)

    def __post_init__(self) -> None:
        self.pidfd = os.dup(self.pidfd)  # the caller may close its descriptor while the killer starts
        self.state = "starting" if self.floor_bytes else "off"
        self._thread = threading.Thread(target=self._run, name="memory-guard", daemon=True)

    def start(self) -> None:
        """Start the thread. Raises BlockingIOError where there can be no more threads."""
        try:
            start_thread(self._thread)
        except BlockingIOError:
            os.close(self.pidfd)
            raise

    def raise_if_killed(self) -> None:
        """Raises MemoryGuardError where the guard has killed the rank."""
        if self._account:
            raise MemoryGuardError(self._account, HINT)

    def close(self) -> None:
        """Leave the killer. It forgets a rank that ends; one that lives on is killed when the unit's lease ends."""
        self._closing.set()
        self._disconnect()
        self.state = ""
        self._thread.join(RETRY_SECONDS)

    def _disconnect(self) -> None:
        with suppress(OSError):
            if self._killer is not None:
                self._killer.shutdown(socket.SHUT_RDWR)

    def _run(self) -> None:
        try:
            while not self._closing.is_set() and not self._run_killer():
                self._closing.wait(RETRY_SECONDS)
        finally:
            os.close(self.pidfd)
            self.over.set()
            self.wake()

    def _run_killer(self) -> bool:
        """Let one killer watch the rank until either ends. Returns whether nothing is left to watch."""
        status = ""
        try:
            if (connection := self._connect()) is not None:
                line = self._follow(connection)
            elif not self.floor_bytes:
                return True  # a child has nothing to watch: it ends with this agent
            else:
                line, status = self._run_child()
        except OSError as error:
            # A silent unit is not tried again. If it starts yet, it watches too. One that died has restarted by then.
            self._uses_unit = self._uses_unit and not isinstance(error, TimeoutError)
            if not self._closing.is_set():
                self._report_failure(str(error))
            return False
        if line.startswith((ENDED, KILLED)):
            return True
        if not self._closing.is_set():
            self._report_failure(f"its process ended{status}: {line}")
        return False

    def _connect(self) -> socket.socket | None:
        """Connect to the unit; None where there is none, or where it gave no answer before."""
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            if self._uses_unit:
                connection.connect(self.unit_socket)
                return connection
        except OSError as error:
            if self.unit_socket not in self._reported:
                self._reported.add(self.unit_socket)
                reason = f"sparkd-guard.socket takes no connection: {error.strerror}; the engine ends with its agent"
                self.events.warning("memory_guard.unit.away", reason=reason, hint=UNIT_HINT)
        connection.close()
        return None

    def _run_child(self) -> tuple[str, str]:
        """Let a child process watch the rank. Returns its last line, and its exit code in words. Raises OSError."""
        connection, process = self._start_child()
        with process:
            try:
                line = self._follow(connection)
            finally:
                with suppress(subprocess.TimeoutExpired):
                    process.wait(RETRY_SECONDS / 2)
                process.kill()  # one that hangs does not end with its connection
        return line, f" with {process.returncode}"

    def _start_child(self) -> tuple[socket.socket, subprocess.Popen[bytes]]:
        """Start the child process, which ends when its connection does. Raises OSError."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            process = subprocess.Popen(
                [sys.executable, "-I", "-S", "-B", "-c", self.boot.format(_FOLDER), self.proc, "0"],
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env={},
                start_new_session=True,  # a Ctrl-C at the agent's terminal is for the agent
            )
        except OSError:
            ours.close()
            raise
        finally:
            theirs.close()
        return ours, process

    def _follow(self, connection: socket.socket) -> str:
        """Name the rank and handle the killer's lines to the last, which is returned. Raises OSError for no answer."""
        line = ""
        with connection:
            self._killer = connection
            if self._closing.is_set():  # `close` may have run before there was a connection
                self._disconnect()
            connection.settimeout(self.answer_seconds)
            socket.send_fds(connection, [str(self.floor_bytes).encode()], [self.pidfd])
            while not line.startswith((ENDED, KILLED)) and (received := connection.recv(4096)):
                connection.settimeout(None)
                line = received.decode(errors="replace")
                self._handle_line(line)
        return line

    def _handle_line(self, line: str) -> None:
        word, _, rest = line.partition(" ")
        if word == KILLED:
            self._account = rest
        elif not self.floor_bytes:
            self.state = "off"
        elif word == LOCKED:
            self.state = "watching"
            self.events.info("memory_guard.watch.started", floor_mib=self.floor_bytes // MIB)
        elif word == UNLOCKED:
            self.state = "unlocked"
            if line not in self._reported:
                self._reported.add(line)
                hint = "the unit must allow CAP_IPC_LOCK; the guard works without it, but may be late"
                self.events.warning("memory_guard.lock.failed", reason=rest, hint=hint)

    def _report_failure(self, reason: str) -> None:
        """Log each reason once: the killer is restarted every second."""
        self.state = "failed"
        if reason not in self._reported:
            self._reported.add(reason)
            self.events.error("memory_guard.watch.failed", reason=reason, hint="sparkd retries every second")
