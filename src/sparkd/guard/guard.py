"""The agent's side of the memory guard: starts its process, starts it again, and hears what it has done."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import sparkd
from sparkd.errors import MemoryGuardError
from sparkd.guard import KILLED, LOCKED, UNLOCKED, trace
from sparkd.lib.log import Events

AGAIN_SECONDS = 1.0
HINT = "stop other work, lower gpu_memory_utilization, max-model-len or max-num-seqs, or memory.floor_mib"
_FOLDER = str(Path(sparkd.__file__).parents[1])
_BOOT = "import sys; sys.path.insert(0, sys.argv[1]); from sparkd.guard.helper import main; sys.exit(main())"


class Guard:
    """Watches memory from `stand` until the rank ends or `close`."""

    def __init__(
        self, floor_bytes: int, pidfd: int, events: Events, bell: Callable[[], None], proc: str = "/proc"
    ) -> None:
        """`bell` rings when nothing more is to come; `proc` is where meminfo lies."""
        self._floor_bytes = floor_bytes
        self._pidfd = os.dup(pidfd)  # the rank's own may be closed while the process is started
        self._events = events
        self._bell = bell
        self._proc = proc
        self._process: subprocess.Popen[str] | None = None
        self._closing = threading.Event()
        self._over = threading.Event()
        self._told: set[str] = set()
        self._samples: tuple[trace.Sample, ...] | None = None
        self._thread = threading.Thread(target=self._run, name="memory-guard", daemon=True)

    def stand(self) -> None:
        """Returns at once."""
        self._thread.start()

    @property
    def over(self) -> bool:
        """Whether all is known that `killed` can say."""
        return self._over.is_set()

    @property
    def killed(self) -> MemoryGuardError | None:
        """Why the guard has killed the rank; None where it has not."""
        if self._samples is None:
            return None
        return MemoryGuardError(trace.sentence(self._samples, self._floor_bytes), HINT)

    def close(self) -> None:
        """Its process ends by the end of its input."""
        self._closing.set()
        if self._process is not None:
            self._release(self._process)
        self._thread.join(AGAIN_SECONDS)

    @staticmethod
    def _release(process: subprocess.Popen[str]) -> None:
        with suppress(OSError):
            if process.stdin is not None:
                process.stdin.close()

    def _run(self) -> None:
        try:
            while not self._closing.is_set() and not self._watched():
                self._closing.wait(AGAIN_SECONDS)
        finally:
            os.close(self._pidfd)
            self._over.set()
            self._bell()

    def _watched(self) -> bool:
        """One process, until it ends; whether its work was done."""
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
            self._complain(str(error))
            return False
        self._process = process
        if self._closing.is_set():  # `close` may have been here before there was a process to see
            self._release(process)
        said = ""
        assert process.stdout is not None
        with process:
            for line in process.stdout:
                said = line.rstrip("\n")
                if said == KILLED:
                    self._samples = trace.parse(process.stdout)
                else:
                    self._heard(said)
        if process.returncode and not self._closing.is_set():
            self._complain(f"its process ended with {process.returncode}: {said}")
        return process.returncode == 0

    def _heard(self, line: str) -> None:
        word, _, rest = line.partition(" ")
        if word == LOCKED:
            self._events.info("guard.memory.watched", floor_mib=self._floor_bytes // trace.MIB)
        elif word == UNLOCKED and line not in self._told:
            self._told.add(line)
            hint = "the unit must allow CAP_IPC_LOCK; it watches all the same, and may be late"
            self._events.warning("guard.memory.unlocked", reason=rest, hint=hint)

    def _complain(self, reason: str) -> None:
        """Once for each reason: it is tried again every second."""
        if reason not in self._told:
            self._told.add(reason)
            self._events.error("guard.memory.unwatched", reason=reason, hint="it is tried again until it works")
