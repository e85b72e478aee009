"""Runs the operator's hooks: programs in /etc/sparkd/preflight.d that have a say before each launch."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Protocol

from sparkd.lib.text import sanitize
from sparkd.preflight.check import Finding, Level, Verdict
from sparkd.preflight.hook_list import Hook

DEADLINE_SECONDS = 30.0
OUTPUT_LIMIT_BYTES = 4096
"""Kept of what a hook says; the rest is read and thrown away, so that a talkative hook does not block."""
REAP_SECONDS = 5.0

_LEVELS = {0: Level.OK, 1: Level.BLOCK, 2: Level.UNKNOWN}


class Waits(Protocol):
    """Waiting that keeps the main loop alive: `Pulse` has it. It may come back early, and may raise."""

    def wait(self, seconds: float, fd: int | None = None) -> bool: ...


def environment(role: str, rank: int) -> dict[str, str]:
    """All that a hook gets of sparkd. No SPARKD_ names: those are settings, to a sparkd that a hook may call."""
    return {
        "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        "LANG": "C.UTF-8",
        "NODE_ROLE": role,
        "NODE_RANK": str(rank),
    }


def run(
    hooks: Iterable[Hook], waits: Waits, env: Mapping[str, str], deadline_seconds: float = DEADLINE_SECONDS
) -> tuple[Finding, ...]:
    """Run them one after the other, each with a deadline of its own. Nothing that a hook started outlives it."""
    return tuple(hook.refusal if hook.problem else _run(hook, waits, env, deadline_seconds) for hook in hooks)


def _run(hook: Hook, waits: Waits, env: Mapping[str, str], deadline_seconds: float) -> Finding:
    began = time.monotonic()
    try:
        process = subprocess.Popen(
            [hook.path],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            cwd="/",
            env=dict(env),
            start_new_session=True,
        )
    except OSError as error:
        verdict = Verdict(Level.UNKNOWN, f"{hook.path} can't be run: {error.strerror}", "does its first line name it?")
        return Finding(hook.id, verdict, {"path": hook.path}, 0.0)
    try:
        output = _Output(process)
        try:
            ended = output.follow(waits, began + deadline_seconds)
        finally:
            output.close()
    finally:
        # The hook is not reaped yet, so its pid, and with it its group, is still its own.
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        with suppress(subprocess.TimeoutExpired):
            process.wait(REAP_SECONDS)
    verdict = _verdict(process.returncode, output.first_line) if ended else _overdue(hook, deadline_seconds)
    seconds = round(time.monotonic() - began, 3)
    return Finding(hook.id, verdict, {"path": hook.path, "exit_code": process.returncode if ended else None}, seconds)


def _overdue(hook: Hook, deadline_seconds: float) -> Verdict:
    reason = f"{hook.path} did not end within {deadline_seconds:g} s and was killed"
    return Verdict(Level.UNKNOWN, reason, "mend the hook, or move it away")


def _verdict(code: int, said: str) -> Verdict:
    level = _LEVELS.get(code, Level.UNKNOWN)
    if code < 0:
        ended = f"killed by signal {-code} ({signal.strsignal(-code) or 'no name'})"
    else:
        ended = f"exit code {code}" + ("" if code in _LEVELS else ", which no hook should have")
    if level is Level.OK:
        return Verdict(level, said or "good")
    return Verdict(level, f"{said} ({ended})" if said else ended, "the operator's own check says so")


class _Output:
    """What a hook says, read while it runs."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdout is not None
        self._pipe = process.stdout
        os.set_blocking(self._pipe.fileno(), False)
        self._pidfd = os.pidfd_open(process.pid)
        self._poll = select.epoll()
        self._poll.register(self._pidfd, select.EPOLLIN)
        self._poll.register(self._pipe.fileno(), select.EPOLLIN)
        self._kept = b""
        self._open = True

    def follow(self, waits: Waits, deadline: float) -> bool:
        """Until the hook ends, not until its output does: a child may keep that open. False: the deadline came."""
        while (left := deadline - time.monotonic()) > 0:
            waits.wait(left, self._poll.fileno())
            ready = {fd for fd, _ in self._poll.poll(0)}
            if self._pipe.fileno() in ready:
                self._read()
            if self._pidfd in ready:
                self._read()
                return True
        return False

    def _read(self) -> None:
        """Everything that is there; at most so much a call that the deadline is looked at again."""
        for _ in range(64):
            try:
                chunk = os.read(self._pipe.fileno(), 65536)
            except BlockingIOError:
                return
            if not chunk:
                if self._open:
                    self._poll.unregister(self._pipe.fileno())
                self._open = False
                return
            self._kept = (self._kept + chunk)[:OUTPUT_LIMIT_BYTES]

    @property
    def first_line(self) -> str:
        lines = self._kept.decode("utf-8", "backslashreplace").splitlines()
        return sanitize(next((line.strip() for line in lines if line.strip()), ""))

    def close(self) -> None:
        self._poll.close()
        os.close(self._pidfd)
        self._pipe.close()
