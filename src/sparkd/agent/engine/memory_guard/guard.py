"""The agent's side of the memory guard: starts and restarts the killer process, and reads its results."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import sparkd
from sparkd.agent.engine.memory_guard.killer import KILLED, LOCKED, MIB, UNLOCKED
from sparkd.base.lib import start_thread
from sparkd.base.lib.errors import MemoryGuardError
from sparkd.base.lib.log import Events

RETRY_SECONDS = 1.0
HINT = "stop other work, lower gpu_memory_utilization, max-model-len or max-num-seqs, or memory.floor_mib"
_FOLDER = str(Path(sparkd.__file__).parents[1])
_BOOT = (
    "import sys; sys.path.insert(0, sys.argv[1]); "
    "from sparkd.agent.engine.memory_guard.killer import main; sys.exit(main())"
)


class MemoryGuard:
    """Watches memory from `start` until the rank ends or `close`."""

    def __init__(
        self, floor_bytes: int, pidfd: int, events: Events, wake: Callable[[], None], proc: str = "/proc"
    ) -> None:
        """`wake` is called when `over` becomes true. `proc`: the folder of meminfo."""
        self._floor_bytes = floor_bytes
        self._pidfd = os.dup(pidfd)  # the rank's own may be closed while the process starts
        self._events = events
        self._wake = wake
        self._proc = proc
        self._process: subprocess.Popen[str] | None = None
        self._closing = threading.Event()
        self._over = threading.Event()
        self._reported: set[str] = set()
        self.state = "starting"
        """One of GUARD_STATES; empty after `close`. Any thread may read it."""
        self._account = ""
        """Of the kill, from the killer; empty where there was none."""
        self._thread = threading.Thread(target=self._run, name="memory-guard", daemon=True)

    def start(self) -> None:
        """Raises BlockingIOError."""
        try:
            start_thread(self._thread)
        except BlockingIOError:
            os.close(self._pidfd)
            raise

    @property
    def over(self) -> bool:
        """Whether `killed` is final."""
        return self._over.is_set()

    @property
    def killed(self) -> MemoryGuardError | None:
        """The error of the guard's kill; None where there was none."""
        return MemoryGuardError(self._account, HINT) if self._account else None

    def raise_if_killed(self) -> None:
        if (error := self.killed) is not None:
            raise error

    def close(self) -> None:
        """The killer ends when its input closes."""
        self._closing.set()
        self._close_input()
        self.state = ""
        self._thread.join(RETRY_SECONDS)

    def _close_input(self) -> None:
        with suppress(OSError):
            if self._process is not None and self._process.stdin is not None:
                self._process.stdin.close()

    def _run(self) -> None:
        try:
            while not self._closing.is_set() and not self._run_killer():
                self._closing.wait(RETRY_SECONDS)
        finally:
            os.close(self._pidfd)
            self._over.set()
            self._wake()

    def _run_killer(self) -> bool:
        """Run one killer process to its end; whether it finished its work."""
        arguments = (_FOLDER, str(self._floor_bytes), str(self._pidfd), self._proc)
        try:
            process = subprocess.Popen(
                [sys.executable, "-I", "-S", "-B", "-c", _BOOT, *arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                pass_fds=(self._pidfd,),
                start_new_session=True,  # a Ctrl-C at the agent's terminal is for the agent
            )
        except OSError as error:
            self._report_failure(str(error))
            return False
        self._process = process
        if self._closing.is_set():  # `close` may have run before the process existed
            self._close_input()
        line = ""
        assert process.stdout is not None
        with process:
            for raw in process.stdout:
                line = raw.rstrip("\n")
                self._handle_line(line)
        if process.returncode and not self._closing.is_set():
            self._report_failure(f"its process ended with {process.returncode}: {line}")
        return process.returncode == 0

    def _handle_line(self, line: str) -> None:
        word, _, rest = line.partition(" ")
        if word == KILLED:
            self._account = rest
        elif word == LOCKED:
            self.state = "watching"
            self._events.info("memory_guard.watch.started", floor_mib=self._floor_bytes // MIB)
        elif word == UNLOCKED:
            self.state = "unlocked"
            if line not in self._reported:
                self._reported.add(line)
                hint = "the unit must allow CAP_IPC_LOCK; the guard works without it, but may be late"
                self._events.warning("memory_guard.lock.failed", reason=rest, hint=hint)

    def _report_failure(self, reason: str) -> None:
        """Once for each reason: the killer is restarted every second."""
        self.state = "failed"
        if reason not in self._reported:
            self._reported.add(reason)
            self._events.error("memory_guard.watch.failed", reason=reason, hint="sparkd retries every second")
