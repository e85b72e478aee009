"""A rank's compilers in a memory that does not hold them all: real processes and signals, a small made-up machine."""

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from signal import SIGCONT, SIGSTOP

import psutil
import pytest
from tests.unit.cluster_nodes import EventLines
from tests.unit.nodes import until

from sparkd.agent.actions.processes import signal_process
from sparkd.agent.engine.compilers import COMPILERS, CompilerWatch
from sparkd.base.host.cgroups import read_group
from sparkd.base.host.files import Files
from sparkd.base.host.processes import Process, read_process

MIB = 1 << 20
SHORT_MIB, LEAST_MIB, MACHINE_MIB = 180, 8, 400
OWN_GROUP = read_group(Files(), os.getpid()).container_id
"""Empty outside of containers."""
NINJA = """
import subprocess, sys
program, jobs, files = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
running, codes = [], []
for _ in range(files):
    running.append(subprocess.Popen([sys.executable, "-ISc", program]))
    if len(running) == jobs:
        codes.append(running.pop(0).wait())
sys.exit(any([*codes, *(compiler.wait() for compiler in running)]))
"""
CICC = """
import ctypes, time
ctypes.CDLL(None).prctl(15, b"cicc", 0, 0, 0)
held = []
for _ in range(30):
    held.append(b"x" * (2 << 20))
    time.sleep(0.13)
"""
"""60 MiB in four seconds."""


class Machine:
    """Of MACHINE_MIB, in which only the rank's compilers take memory."""

    def __init__(self, pid: int) -> None:
        self.rank, self.least_mib = psutil.Process(pid), float(MACHINE_MIB)

    def available_bytes(self) -> int:
        used = 0
        with suppress(psutil.Error):
            for process in self.rank.children(recursive=True):
                with suppress(psutil.Error):
                    used += process.memory_info().rss if process.name() in COMPILERS else 0
        self.least_mib = min(self.least_mib, MACHINE_MIB - used / MIB)
        return MACHINE_MIB * MIB - used

    def processes(self) -> Iterator[Process]:
        with suppress(psutil.Error):
            yield from filter(None, (read_process(Files(), child.pid) for child in self.rank.children(recursive=True)))


@contextmanager
def compiling(jobs: int, files: int) -> Iterator[subprocess.Popen[bytes]]:
    """The first process of a rank, whose ninja compiles so many files, `jobs` at once."""
    with subprocess.Popen([sys.executable, "-ISc", NINJA, CICC, str(jobs), str(files)]) as process:
        try:
            yield process
        finally:
            with suppress(psutil.Error):
                for child in psutil.Process(process.pid).children(recursive=True):
                    child.kill()
            process.kill()


@contextmanager
def holding(machine: Machine, events: EventLines) -> Iterator[None]:
    watch = CompilerWatch(
        floor_bytes=SHORT_MIB * MIB,
        ended=threading.Event(),
        processes=machine.processes,
        available_bytes=machine.available_bytes,
        set_held=lambda key, held: signal_process(SIGSTOP if held else SIGCONT, *key, OWN_GROUP),
        events=events,
    )
    until(lambda: machine.available_bytes() < MACHINE_MIB * MIB)  # else the next look is a second away
    thread = threading.Thread(target=watch.run)
    thread.start()
    try:
        yield
    finally:
        watch.ended.set()
        thread.join()


def await_end(process: subprocess.Popen[bytes], machine: Machine) -> int | None:
    deadline = time.monotonic() + 90
    while process.poll() is None and time.monotonic() < deadline:
        machine.available_bytes()
        time.sleep(0.05)
    return process.poll()


@pytest.mark.parametrize("_", [0, *(pytest.param(number, marks=pytest.mark.whole) for number in range(1, 10))])
def test_eight_compilers_that_would_take_more_than_all_memory_do_not_where_they_are_held_back(_: int) -> None:
    with compiling(jobs=8, files=8) as process:
        machine = Machine(process.pid)
        assert await_end(process, machine) == 0
    assert machine.least_mib < 0, "the machine is too large for this test"
    events = EventLines()
    with compiling(jobs=8, files=8) as process:
        machine = Machine(process.pid)
        with holding(machine, events):
            assert await_end(process, machine) == 0
    print(f"least available: {machine.least_mib:.0f} MiB")
    assert machine.least_mib > LEAST_MIB
    assert [line.split()[0] for line in events.lines] == ["engine.compilers.held"]


def test_a_held_compiler_continues_when_the_watch_ends() -> None:
    events = EventLines()
    with compiling(jobs=8, files=8) as process:
        machine = Machine(process.pid)
        with holding(machine, events):
            deadline = time.monotonic() + 30
            while not events.lines and time.monotonic() < deadline:
                time.sleep(0.05)
            assert "stopped" in states(machine)
        assert "stopped" not in states(machine)


def test_a_process_with_another_start_time_or_container_gets_no_signal() -> None:
    with subprocess.Popen(["sleep", "60"]) as sleeper:
        try:
            process = read_process(Files(), sleeper.pid)
            assert process is not None
            live = psutil.Process(sleeper.pid)
            assert not signal_process(SIGSTOP, process.pid, process.start_time + 1, OWN_GROUP)
            assert not signal_process(SIGSTOP, process.pid, process.start_time, "c" * 64)
            time.sleep(0.1)
            assert live.status() == "sleeping"
            assert signal_process(SIGSTOP, process.pid, process.start_time, OWN_GROUP)
            until(lambda: live.status() == "stopped")
            assert signal_process(SIGCONT, process.pid, process.start_time, OWN_GROUP)
            until(lambda: live.status() == "sleeping")
        finally:
            sleeper.kill()
    assert not signal_process(SIGSTOP, process.pid, process.start_time, OWN_GROUP)


def states(machine: Machine) -> set[str]:
    return {{"T": "stopped"}.get(process.state, process.state) for process in machine.processes()}
