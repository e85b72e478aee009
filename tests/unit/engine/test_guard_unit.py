"""The killer as a unit of its own: a rank whose agent has ended is killed when the lease ends, and no earlier."""

import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from tests.unit.cluster_nodes import EventLines
from tests.unit.engine.guard_processes import find_killers, is_watching
from tests.unit.nodes import until

import sparkd
from sparkd.agent.actions.rank_process import open_ended_pidfd
from sparkd.agent.engine.memory_guard.guard import ANSWER_SECONDS, BOOT, MemoryGuard
from sparkd.base.lib.errors import MemoryGuardError

LEASE_SECONDS = 2.0
FOLDER = str(Path(sparkd.__file__).parents[1])
AGENT = """
import os, socket, sys, time
killer = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
killer.connect(sys.argv[1])
socket.send_fds(killer, [sys.argv[2].encode()], [os.pidfd_open(int(sys.argv[3]))])
print(killer.recv(100).decode(), flush=True)
if sys.argv[4:]:
    killer.close()
time.sleep(60)
"""
"""Names a rank, and stays; with a further word it closes the connection."""


Rank = subprocess.Popen[bytes]


class Unit:
    """What systemd does for sparkd-guard: it holds the socket, and starts a process where somebody connects."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.path, self._folder, self._stack = str(folder / "guard.sock"), folder, stack
        self._door = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET))
        self._door.bind(self.path)
        self._door.listen()

    def start(self, proc: str = "/proc") -> subprocess.Popen[str]:
        self.process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-B", "-c", BOOT.format(FOLDER), proc, str(LEASE_SECONDS)],
            stdin=self._door.fileno(),
            stderr=subprocess.PIPE,
            text=True,
            env={"RUNTIME_DIRECTORY": str(self._folder)},
        )
        self._stack.enter_context(self.process)
        self._stack.callback(self.process.kill)
        return self.process

    def agent(self, rank: Rank, floor_bytes: int = 1, *more: str) -> subprocess.Popen[str]:
        """Start an agent that names this rank; returns once that is watched."""
        command = [sys.executable, "-c", AGENT, self.path, str(floor_bytes), str(rank.pid), *more]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        self._stack.enter_context(process)
        self._stack.callback(process.kill)
        assert process.stdout is not None
        assert select.select([process.stdout], [], [], 20)[0], "no answer"
        assert process.stdout.readline().startswith(("locked", "unlocked"))
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
def rank(stack: ExitStack) -> Rank:
    process = stack.enter_context(subprocess.Popen(["sleep", "60"]))
    stack.callback(process.kill)
    return process


def assert_outlives_the_lease(rank: Rank) -> None:
    time.sleep(LEASE_SECONDS + 1)
    assert rank.poll() is None


def end(process: subprocess.Popen[str]) -> float:
    """Kill it; when it has ended."""
    process.kill()
    process.wait()
    return time.monotonic()


def test_a_rank_whose_agent_does_not_come_back_is_killed_when_the_lease_ends(unit: Unit, rank: Rank) -> None:
    process = unit.start()
    left_at = end(unit.agent(rank))
    assert rank.wait(20) == -signal.SIGKILL
    assert time.monotonic() - left_at >= LEASE_SECONDS - 0.1
    assert process.wait(20) == 0, "it ends where nothing is left to watch"
    assert process.stderr is not None
    assert process.stderr.read() == "killed the rank was killed: its agent has been away for 2 s\n"


def test_a_rank_whose_next_agent_comes_in_time_lives_on(unit: Unit, rank: Rank) -> None:
    unit.start()
    end(unit.agent(rank))
    unit.agent(rank)
    assert_outlives_the_lease(rank)


def test_an_agent_that_lives_keeps_its_rank_though_it_speaks_to_this_unit_no_more(unit: Unit, rank: Rank) -> None:
    """Such an agent got no answer in time, and has a guard of its own since."""
    unit.start()
    agent = unit.agent(rank, 1, "leave")
    assert_outlives_the_lease(rank)
    end(agent)
    assert rank.wait(20) == -signal.SIGKILL


def test_a_floor_of_zero_watches_the_agent_alone(unit: Unit, rank: Rank, tmp_path: Path) -> None:
    (tmp_path / "meminfo").write_text("MemAvailable: 0 kB\n")
    unit.start(str(tmp_path))
    agent = unit.agent(rank, 0)
    assert_outlives_the_lease(rank)
    end(agent)
    assert rank.wait(20) == -signal.SIGKILL


def start_guard(
    rank: Rank,
    unit: str,
    stack: ExitStack,
    floor_bytes: int = 1,
    answer_seconds: float = ANSWER_SECONDS,
    events: EventLines | None = None,
) -> MemoryGuard:
    pidfd = open_ended_pidfd() if rank.poll() is not None else os.pidfd_open(rank.pid)
    guard = MemoryGuard(
        floor_bytes, pidfd, events or EventLines(), lambda: None, unit_socket=unit, answer_seconds=answer_seconds
    )
    guard.start()
    os.close(pidfd)
    stack.callback(guard.close)
    return guard


def test_without_a_unit_a_floor_of_zero_starts_nothing(rank: Rank, tmp_path: Path, stack: ExitStack) -> None:
    guard = start_guard(rank, str(tmp_path / "none"), stack, 0)
    until(guard.over.is_set)
    assert guard.state == "off"
    assert rank.poll() is None


@pytest.mark.parametrize("leaves_socket", [False, True])
def test_a_unit_that_is_off_is_named_once_with_the_command(
    rank: Rank, tmp_path: Path, stack: ExitStack, leaves_socket: bool
) -> None:
    path, events = str(tmp_path / "socket"), EventLines()
    if leaves_socket:  # as a systemd that was killed
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listening:
            listening.bind(path)
    guard = start_guard(rank, path, stack, events=events, answer_seconds=0.0)
    until(lambda: len(events.lines) > 1)
    assert not guard.over.is_set()
    away = [line for line in events.lines if line.startswith("memory_guard.unit.away reason=sparkd-guard.socket takes")]
    assert len(away) == 1
    assert "sudo systemctl start sparkd-guard.socket" in away[0]


def test_a_killed_unit_is_followed_by_one_that_knows_the_rank_though_its_agent_is_gone_too(
    unit: Unit, rank: Rank
) -> None:
    first = unit.start()
    agent = unit.agent(rank)
    end(first)
    end(agent)
    second = unit.start()
    assert rank.wait(20) == -signal.SIGKILL
    assert second.wait(20) == 0


def test_a_unit_that_is_started_again_leaves_the_rank_of_a_living_agent_alone(unit: Unit, rank: Rank) -> None:
    """After `systemctl stop sparkd-guard.socket sparkd-guard` the agent has a guard of its own."""
    first = unit.start()
    unit.agent(rank, 1, "leave")
    end(first)
    unit.start()
    assert_outlives_the_lease(rank)


def test_a_killed_unit_is_named_the_rank_again(unit: Unit, rank: Rank, stack: ExitStack) -> None:
    first = unit.start()
    guard = start_guard(rank, unit.path, stack)
    until(lambda: is_watching(guard))
    end(first)
    until(lambda: guard.state == "failed")
    unit.start()
    until(lambda: is_watching(guard))
    assert_outlives_the_lease(rank)


def test_a_kept_rank_whose_pid_is_anothers_now_is_not_touched(unit: Unit, rank: Rank, tmp_path: Path) -> None:
    (tmp_path / "rank").write_text(f"1 {rank.pid} 1 {rank.pid} 1\n")
    assert unit.start().wait(20) == 0
    assert rank.poll() is None


def test_a_connection_that_names_no_rank_is_closed_and_the_rank_stays_watched(unit: Unit, rank: Rank) -> None:
    process = unit.start()
    agent = unit.agent(rank)
    for request in (b"", b"-1", b"x" * 200, b"512"):
        with unit.connect() as stranger:
            stranger.send(request)
            assert stranger.recv(100) == b"", request
    assert_outlives_the_lease(rank)
    assert process.poll() is None
    end(agent)
    assert rank.wait(20) == -signal.SIGKILL


def test_a_unit_that_answers_too_late_does_no_harm(unit: Unit, rank: Rank, stack: ExitStack) -> None:
    guard = start_guard(rank, unit.path, stack, answer_seconds=1.0)
    until(lambda: is_watching(guard))
    late_unit = unit.start()
    assert_outlives_the_lease(rank)
    assert late_unit.poll() is None
    assert is_watching(guard)


ENDED_RANK = """
import os, socket, subprocess, sys
process = subprocess.Popen(["true"])
pidfd = os.pidfd_open(process.pid)
process.wait()
with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
    connection.connect(sys.argv[1])
    socket.send_fds(connection, [b"1"], [pidfd])
    print(connection.recv(4096).decode())
"""
"""An agent whose rank has ended by the time it is named; prints the guard's first words."""
PLENTY, NOTHING = "MemAvailable: 1000000 kB\n", "MemAvailable:       0 kB\n"


def overwrite(meminfo: Path, text: str) -> None:
    """Never empty, as the kernel's own file: the guard has it open, and reads it at any time."""
    with meminfo.open("r+") as file:
        file.write(text)


@pytest.fixture
def meminfo(tmp_path: Path, unit: Unit) -> Path:
    """What the unit, which has started, reads: plenty of memory."""
    path = tmp_path / "meminfo"
    path.write_text(PLENTY)
    unit.start(str(tmp_path))
    return path


def kill_by_shortage(rank: Rank, meminfo: Path) -> None:
    overwrite(meminfo, NOTHING)
    assert rank.wait(20) == -signal.SIGKILL
    overwrite(meminfo, PLENTY)


def assert_has_account(guard: MemoryGuard) -> None:
    until(guard.over.is_set)
    with pytest.raises(MemoryGuardError, match="memory ran out"):
        guard.raise_if_killed()


def test_an_agent_that_is_reloaded_as_its_rank_is_killed_gets_the_account(
    unit: Unit, rank: Rank, meminfo: Path, stack: ExitStack
) -> None:
    before = start_guard(rank, unit.path, stack)
    until(lambda: is_watching(before))
    before.close()
    kill_by_shortage(rank, meminfo)
    assert_has_account(start_guard(rank, unit.path, stack))


def test_an_account_that_was_sent_is_for_the_next_program_of_the_agent_too_and_for_no_other_rank(
    unit: Unit, rank: Rank, meminfo: Path, stack: ExitStack
) -> None:
    before = start_guard(rank, unit.path, stack)
    until(lambda: is_watching(before))
    kill_by_shortage(rank, meminfo)
    assert_has_account(before)
    before.close()
    assert_has_account(start_guard(rank, unit.path, stack))
    with subprocess.Popen(["sleep", "60"]) as another:
        last = start_guard(another, unit.path, stack)
        until(lambda: is_watching(last))
        another.kill()
    until(last.over.is_set)
    last.raise_if_killed()
    last.close()
    assert unit.process.wait(20) == 0, "nothing is left to watch"


def test_another_agent_whose_rank_has_ended_gets_no_account(
    unit: Unit, rank: Rank, meminfo: Path, stack: ExitStack
) -> None:
    overwrite(meminfo, NOTHING)
    assert_has_account(start_guard(rank, unit.path, stack))
    ended = subprocess.run([sys.executable, "-c", ENDED_RANK, unit.path], capture_output=True, text=True, timeout=20)
    assert ended.stdout.startswith(("locked", "unlocked")), ended


def test_a_guard_of_the_agents_own_keeps_no_file_and_its_next_one_kills_nothing(
    rank: Rank, tmp_path: Path, stack: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The agent's unit has a RUNTIME_DIRECTORY too."""
    monkeypatch.setenv("RUNTIME_DIRECTORY", str(tmp_path))
    guard = start_guard(rank, str(tmp_path / "none"), stack)
    until(lambda: is_watching(guard))
    (killer,) = find_killers()
    os.kill(killer, signal.SIGKILL)
    until(lambda: guard.state == "failed")
    until(lambda: is_watching(guard))
    assert rank.poll() is None
    assert not list(tmp_path.iterdir())
