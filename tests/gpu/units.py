"""A stand-in for systemd: the agent's unit and its guard's, by the lines of their own files.

It honours ExecStart, ExecReload, ExecStopPost with its variables, Restart, RestartSec, RestartPreventExitStatus,
WatchdogSec, Environment, UMask, OOMScoreAdjust, the notify socket, and the guard's socket. It does not honour the
sandbox (capabilities, file systems, system calls), the control group, start and stop time-outs, and ordering: booted
nodes show these, in tests/bed. `systemctl list-jobs` lists the one job that it may have, a stop.
"""

from __future__ import annotations

import os
import secrets
import select
import shlex
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

FOLDER = Path("/usr/lib/systemd/system")
JOBS = Path("/run/gpu-jobs")
SYSTEMCTL = (
    f"#!/bin/sh\n[ \"$1\" = list-jobs ] && exec cat {JOBS}\necho 'systemctl: there is no systemd here' >&2\nexit 1\n"
)
GROUP = Path("/sys/fs/cgroup/sparkd-gpu-agent")
GUARD_SOCKET = Path("/run/sparkd-guard.sock")
STOP_SECONDS = 60.0


def read_unit(name: str) -> dict[str, str]:
    """Keys of [Service]; the last line of a key counts."""
    lines = (FOLDER / name).read_text().partition("[Service]\n")[2].partition("\n[")[0].splitlines()
    return dict(line.split("=", 1) for line in lines if line[:1].isalpha())


class Agent:
    """The unit `name`. Its log has a stamp in seconds since the start of this program before each line."""

    def __init__(self, log: Path, environment: Mapping[str, str], name: str = "sparkd-head.service") -> None:
        self.unit, self.name = read_unit(name), name
        self.starts, self.pid, self.result = 0, 0, ""
        self.ready_at: float | None = None
        """Monotonic, of the READY=1 of this start."""
        self.ended: list[tuple[float, str]] = []
        """Monotonic, and how; one for each end."""
        self.watchdog_seconds = float(self.unit["WatchdogSec"])
        self._heard, self._stopping, self._over = 0.0, threading.Event(), threading.Event()
        self._log, self._began = log.open("a", buffering=1), time.monotonic()
        self._notes = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        path = f"/run/gpu-notify-{secrets.token_hex(4)}"
        self._notes.bind(path)
        self._environment = {
            **environment, "NOTIFY_SOCKET": path,
            "RUNTIME_DIRECTORY": "/run/sparkd", "STATE_DIRECTORY": "/var/lib/sparkd",
            "WATCHDOG_USEC": str(round(self.watchdog_seconds * 1e6)),
            **dict(word.split("=", 1) for word in self.unit["Environment"].split()),
        }  # fmt: skip
        JOBS.write_text("")
        for folder in ("/run/sparkd", "/var/lib/sparkd"):
            Path(folder).mkdir(mode=0o755, exist_ok=True)
        threading.Thread(target=self._listen, daemon=True).start()
        threading.Thread(target=self._run, daemon=True).start()

    @property
    def over(self) -> bool:
        """Whether it was stopped, or ended with a status after which systemd leaves it."""
        return self._over.is_set()

    def kill(self, number: int = signal.SIGKILL) -> float:
        """Returns when."""
        at = time.monotonic()
        os.kill(self.pid, number)
        return at

    def exhaust(self) -> None:
        """A control group in which the agent's next page is one too many. Raises OSError without cgroup v2."""
        (GROUP.parent / "cgroup.subtree_control").write_text("+memory")
        GROUP.mkdir()
        (GROUP / "memory.max").write_text("0")
        (GROUP / "cgroup.procs").write_text(str(self.pid))

    def reload(self) -> subprocess.CompletedProcess[str]:
        JOBS.write_text(f"2 {self.name} reload running\n")
        try:
            return subprocess.run(
                shlex.split(self.unit["ExecReload"]), capture_output=True, text=True, timeout=90, check=False,
                env=self._environment,
            )  # fmt: skip
        finally:
            JOBS.write_text("")

    def stop(self) -> float:
        """Seconds until it had ended."""
        began = time.monotonic()
        if not self.over:
            JOBS.write_text(f"1 {self.name} stop running\n")
            self._stopping.set()
            with suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGTERM)
            if not self._over.wait(STOP_SECONDS):
                os.kill(self.pid, signal.SIGKILL)
                self._over.wait(STOP_SECONDS)
            JOBS.write_text("")
        return time.monotonic() - began

    def _run(self) -> None:
        while True:
            environment = {**self._environment, "INVOCATION_ID": secrets.token_hex(16)}
            self.ready_at, self._heard = None, time.monotonic()
            process = subprocess.Popen(
                shlex.split(self.unit["ExecStart"]), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT, env=environment, start_new_session=True, umask=int(self.unit["UMask"], 8),
            )  # fmt: skip
            with suppress(PermissionError):
                Path(f"/proc/{process.pid}/oom_score_adj").write_text(self.unit["OOMScoreAdjust"])
            self.pid, self.starts = process.pid, self.starts + 1
            threading.Thread(target=self._read, args=(process,), daemon=True).start()
            late = self._wait(process)
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # KillMode=mixed
            self.result, status = _describe(process.returncode, late, _oom_killed())
            self.ended.append((time.monotonic(), f"{self.result} {status}"))
            self._note(f"==== {self.result} {status}")
            code = "exited" if process.returncode >= 0 else "killed"
            ending = {"SERVICE_RESULT": self.result, "EXIT_CODE": code, "EXIT_STATUS": status}
            swept = subprocess.run(
                shlex.split(self.unit["ExecStopPost"]), capture_output=True, text=True, env={**environment, **ending},
                check=False,
            )  # fmt: skip
            self._note(f"==== ExecStopPost {swept.returncode} {swept.stdout}{swept.stderr}".rstrip())
            if self._stopping.is_set() or status in self.unit["RestartPreventExitStatus"].split():
                self._over.set()
                return
            self._stopping.wait(float(self.unit["RestartSec"]))
            if self._stopping.is_set():
                self._over.set()
                return

    def _wait(self, process: subprocess.Popen[bytes]) -> bool:
        """Until it has ended. Returns whether the watchdog ended it."""
        late = False
        while True:
            try:
                process.wait(0.02)
            except subprocess.TimeoutExpired:
                if not late and time.monotonic() - self._heard > self.watchdog_seconds:
                    late = True
                    process.send_signal(signal.SIGABRT)
                    process.send_signal(signal.SIGCONT)
            else:
                return late

    def _read(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            self._note(line.decode(errors="replace").rstrip("\n"))

    def _listen(self) -> None:
        while True:
            text = self._notes.recv(8192).decode(errors="replace")
            self._heard = time.monotonic()
            if "READY=1" in text:
                self.ready_at = self._heard
            if text != "WATCHDOG=1":
                self._note(f">> {text!r}")

    def _note(self, text: str) -> None:
        self._log.write(f"{time.monotonic() - self._began:8.2f} {text}\n")


class Guard:
    """sparkd-guard.socket and its service, which begins with the first connection."""

    def __init__(self, log: Path) -> None:
        self._unit, self._log = read_unit("sparkd-guard.service"), log.open("ab")
        self._environment = {**os.environ, "RUNTIME_DIRECTORY": "/run/sparkd-guard"}
        Path("/run/sparkd-guard").mkdir(mode=0o700, exist_ok=True)
        GUARD_SOCKET.unlink(missing_ok=True)
        self._door = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._door.bind(str(GUARD_SOCKET))
        GUARD_SOCKET.chmod(0o600)
        self._door.listen()
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        while True:
            select.select([self._door], [], [])
            while self._serve():  # Restart=on-failure
                time.sleep(float(self._unit["RestartSec"]))

    def _serve(self) -> int:
        command = shlex.split(self._unit["ExecStart"])
        done: subprocess.CompletedProcess[bytes] = subprocess.run(
            command, stdin=self._door.fileno(), stdout=subprocess.DEVNULL, stderr=self._log, check=False,
            env=self._environment, start_new_session=True,
        )  # fmt: skip
        return done.returncode


def _oom_killed() -> bool:
    """Removes the group."""
    if not GROUP.exists():
        return False
    killed = "\noom_kill 0" not in (GROUP / "memory.events").read_text()
    GROUP.rmdir()
    return killed


def _describe(code: int, late: bool, oom: bool) -> tuple[str, str]:
    """SERVICE_RESULT and EXIT_STATUS, by systemd.exec(5)."""
    if late:
        return "watchdog", signal.Signals(-code).name.removeprefix("SIG") if code < 0 else str(code)
    if code < 0:
        number = signal.Signals(-code)
        if oom:
            return "oom-kill", number.name.removeprefix("SIG")
        return "core-dump" if number is signal.SIGABRT else "signal", number.name.removeprefix("SIG")
    return ("exit-code" if code else "success"), str(code)
