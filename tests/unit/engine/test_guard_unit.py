"""The killer as a unit of its own: a rank without an agent is killed when the lease ends, and no earlier."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from tests.unit.cluster_nodes import EventLines
from tests.unit.nodes import until

from sparkd.agent.engine.memory_guard import killer
from sparkd.agent.engine.memory_guard.guard import MemoryGuard

LEASE_SECONDS = 1.5


class Unit:
    """What systemd does for sparkd-guard: it holds the socket, and starts a process where somebody connects."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.path, self._folder, self._stack = str(folder / "guard.sock"), folder, stack
        self._door = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET))
        self._door.bind(self.path)
        self._door.listen()

    def start(self, proc: str = "/proc") -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-B", killer.__file__, proc, str(LEASE_SECONDS)],
            stdin=self._door.fileno(),
            stderr=subprocess.PIPE,
            text=True,
            env={"RUNTIME_DIRECTORY": str(self._folder)},
        )
        self._stack.enter_context(process)
        self._stack.callback(process.kill)
        return process

    def connect(self) -> socket.socket:
        connection = self._stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET))
        connection.settimeout(10)
        connection.connect(self.path)
        return connection


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


@pytest.fixture
def unit(tmp_path: Path, stack: ExitStack) -> Unit:
    return Unit(tmp_path, stack)


@pytest.fixture
def rank(stack: ExitStack) -> subprocess.Popen[bytes]:
    process = stack.enter_context(subprocess.Popen(["sleep", "60"]))
    stack.callback(process.kill)
    return process


@pytest.fixture
def watch(unit: Unit, rank: subprocess.Popen[bytes], stack: ExitStack) -> Callable[..., MemoryGuard]:
    """An agent that lets the unit watch the rank; each call is another agent."""

    def start(floor_bytes: int = 1) -> MemoryGuard:
        pidfd, events = os.pidfd_open(rank.pid), EventLines()
        guard = MemoryGuard(floor_bytes, pidfd, events, lambda: None, unit=unit.path)
        guard.start()
        os.close(pidfd)
        stack.callback(guard.close)
        if floor_bytes:
            until(lambda: guard.state in ("watching", "unlocked"))
        return guard

    return start


def test_a_rank_whose_agent_does_not_come_back_is_killed_when_the_lease_ends(
    unit: Unit, rank: subprocess.Popen[bytes], watch: Callable[..., MemoryGuard]
) -> None:
    process = unit.start()
    watch().close()
    left = time.monotonic()
    assert rank.wait(10) == -signal.SIGKILL
    assert time.monotonic() - left >= LEASE_SECONDS - 0.1
    assert process.wait(5) == 0, "it ends where nothing is left to watch"
    assert process.stderr is not None
    assert process.stderr.read() == "killed the rank was killed: its agent has been away for 2 s\n"


def test_a_rank_whose_agent_comes_back_in_time_lives_on(
    unit: Unit, rank: subprocess.Popen[bytes], watch: Callable[..., MemoryGuard]
) -> None:
    unit.start()
    watch().close()
    time.sleep(LEASE_SECONDS / 2)
    watch()
    time.sleep(LEASE_SECONDS + 1)
    assert rank.poll() is None


def test_a_floor_of_zero_watches_the_agent_alone(
    unit: Unit, rank: subprocess.Popen[bytes], watch: Callable[..., MemoryGuard], tmp_path: Path
) -> None:
    (tmp_path / "meminfo").write_text("MemAvailable: 0 kB\n")
    unit.start(str(tmp_path))
    guard = watch(0)
    time.sleep(LEASE_SECONDS + 1)
    assert (rank.poll(), guard.state) == (None, "off")
    guard.close()
    assert rank.wait(10) == -signal.SIGKILL


def test_without_a_unit_a_floor_of_zero_starts_nothing(rank: subprocess.Popen[bytes], tmp_path: Path) -> None:
    pidfd, events = os.pidfd_open(rank.pid), EventLines()
    guard = MemoryGuard(0, pidfd, events, lambda: None, unit=str(tmp_path / "none"))
    guard.start()
    os.close(pidfd)
    until(lambda: guard.over)
    assert (events.lines, rank.poll()) == ([], None)


def test_a_killed_unit_is_followed_by_one_that_knows_the_rank_though_no_agent_is_there(
    unit: Unit, rank: subprocess.Popen[bytes], watch: Callable[..., MemoryGuard]
) -> None:
    first = unit.start()
    guard = watch()
    first.kill()
    first.wait()
    guard.close()
    second = unit.start()
    assert rank.wait(10) == -signal.SIGKILL
    assert second.wait(5) == 0


def test_a_killed_unit_is_named_the_rank_again(
    unit: Unit, rank: subprocess.Popen[bytes], watch: Callable[..., MemoryGuard]
) -> None:
    first = unit.start()
    guard = watch()
    first.kill()
    first.wait()
    until(lambda: guard.state == "failed")
    unit.start()
    until(lambda: guard.state in ("watching", "unlocked"))
    time.sleep(LEASE_SECONDS + 1)
    assert rank.poll() is None


def test_a_kept_rank_whose_pid_is_anothers_now_is_not_touched(
    unit: Unit, rank: subprocess.Popen[bytes], tmp_path: Path
) -> None:
    (tmp_path / "rank").write_text(f"{rank.pid} 1 1\n")
    assert unit.start().wait(5) == 0
    assert rank.poll() is None


@pytest.mark.parametrize("said", [b"", b"-1", b"x" * 200, b"512"])
def test_who_says_anything_else_is_left_and_the_rank_stays_watched(
    unit: Unit, rank: subprocess.Popen[bytes], watch: Callable[..., MemoryGuard], said: bytes
) -> None:
    process = unit.start()
    watch()
    with unit.connect() as stranger:
        stranger.send(said)
        assert stranger.recv(100) == b""
    time.sleep(0.2)
    assert process.poll() is None


def test_an_agent_of_its_own_killer_is_enough_where_the_unit_gives_no_answer(
    unit: Unit, rank: subprocess.Popen[bytes], stack: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sparkd.agent.engine.memory_guard.guard.ANSWER_SECONDS", 0.3)
    pidfd, events = os.pidfd_open(rank.pid), EventLines()
    guard = MemoryGuard(1, pidfd, events, lambda: None, unit=unit.path)
    guard.start()
    os.close(pidfd)
    stack.callback(guard.close)
    until(lambda: guard.state in ("watching", "unlocked"))
    assert any("timed out" in line for line in events.lines)
