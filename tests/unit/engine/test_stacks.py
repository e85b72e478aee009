"""Stacks of a rank that hangs: real processes of this machine, and programs in place of py-spy."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from msgspec.structs import replace
from tests.unit.clock import unstalled
from tests.unit.nodes import until

from sparkd.agent.engine.stacks import MOST_PYTHON, OUTPUT_BYTES, PROGRAMS, PYTHON_SECONDS, read_stacks
from sparkd.base.host import Host
from sparkd.base.host.processes import Process, read_process

HANG = """
import ctypes, sys, time
ctypes.CDLL(None).prctl(15, sys.argv[1].encode(), 0, 0, 0)
def waits_for_ever():
    print(flush=True)
    time.sleep(60)
waits_for_ever()
"""
SECOND_START_FAILS = """
import sys
import psutil
from sparkd.agent.engine.stacks import read_stacks
from sparkd.base.host import Host
from sparkd.base.host.processes import read_process

program, *pids = sys.argv[1:]
starts = []

def refuse_second(event, args):
    if event == "subprocess.Popen" and args[0] == program:
        starts.append(args[1])
        if len(starts) == 2:
            raise BlockingIOError("no more processes")

sys.addaudithook(refuse_second)
files = Host().files
try:
    read_stacks(files, [read_process(files, int(pid)) for pid in pids], [program])
except BlockingIOError:
    _ended, living = psutil.wait_procs(psutil.Process().children(), timeout=10)
    print(f"{len(starts)} started, {len(living)} left")
"""
"""Runs in a process of its own, since nothing removes an audit hook. Arguments: a program, and the pids of a rank."""
HAS_PY_SPY = any(os.access(path, os.X_OK) for path in PROGRAMS)
KERNEL_TEXT_BYTES = 10_000
"""More than the kernel's part of the text has for one process."""


@pytest.fixture
def rank() -> Iterator[list[Process]]:
    """An engine core and a worker, in Python."""
    with ExitStack() as stack:
        processes = []
        for name in ("VLLM::EngineCor", "VLLM::Worker_TP"):  # the 15 letters that the kernel keeps of a name
            process = stack.enter_context(
                subprocess.Popen([sys.executable, "-c", HANG, name, "api-key=secret"], stdout=subprocess.PIPE)
            )
            stack.callback(process.kill)
            assert process.stdout is not None
            process.stdout.readline()
            wait_asleep(process.pid)
            processes.append(read(process.pid))
        yield processes


def read(pid: int) -> Process:
    process = read_process(Host().files, pid)
    assert process is not None
    return process


def wait_asleep(pid: int) -> None:
    until(lambda: read(pid).state == "S")


def program(tmp_path: Path, text: str) -> tuple[str]:
    path = tmp_path / "program"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return (str(path),)


def test_the_kernels_stacks_are_there_without_py_spy(rank: list[Process]) -> None:
    stacks = read_stacks(Host().files, rank, ())
    assert stacks.count == 2
    assert stacks.frame == ""
    assert "no Python stacks: there is no /usr/lib/sparkd/vendor/bin/py-spy" in stacks.text
    for process in rank:
        line = f"== process {process.pid} ({process.comm}) in state S; its threads: 1 of {process.comm} in "
        assert line in stacks.text


@pytest.mark.skipif(not HAS_PY_SPY, reason="py-spy is not installed")
def test_the_stack_of_python_names_the_workers_frame_and_no_command_line(rank: list[Process]) -> None:
    stacks = read_stacks(Host().files, rank)
    worker = rank[1]
    assert stacks.frame == f"waits_for_ever (<string>:6) of process {worker.pid} (VLLM::Worker_TP)"
    for process in rank:
        assert f"Thread {process.pid} (idle)" in stacks.text
    assert "secret" not in stacks.text


@pytest.mark.skipif(not HAS_PY_SPY, reason="py-spy is not installed")
def test_a_stopped_process_is_the_one_that_hangs(rank: list[Process]) -> None:
    core = rank[0]
    os.kill(core.pid, signal.SIGSTOP)
    os.waitid(os.P_PID, core.pid, os.WSTOPPED | os.WNOWAIT)
    assert read_stacks(Host().files, [read(process.pid) for process in rank]).frame.endswith(
        f"of process {core.pid} (VLLM::EngineCor)"
    )


def test_a_program_that_hangs_or_writes_without_end_is_cut_off(rank: list[Process], tmp_path: Path) -> None:
    began = unstalled()
    hung = read_stacks(Host().files, rank, program(tmp_path, "echo begun; exec sleep 60"))
    assert unstalled() - began < PYTHON_SECONDS + 2
    assert hung.text.count("begun") == 2
    endless = read_stacks(Host().files, rank, program(tmp_path, "exec yes endless"))
    assert len(endless.text) < len(rank) * (OUTPUT_BYTES + KERNEL_TEXT_BYTES)


def test_no_more_than_eight_programs_run_at_once(rank: list[Process], tmp_path: Path) -> None:
    workers = [replace(rank[1], pid=pid) for pid in range(1, MOST_PYTHON + 2)]
    stacks = read_stacks(Host().files, [*workers, *rank], program(tmp_path, "echo begun"))
    assert stacks.count == len(workers) + len(rank)
    assert stacks.text.count("begun") == 8


def test_where_a_second_program_cannot_be_started_the_first_is_ended(rank: list[Process], tmp_path: Path) -> None:
    (path,) = program(tmp_path, "exec sleep 60")
    done = subprocess.run(
        [sys.executable, "-c", SECOND_START_FAILS, path, *(str(process.pid) for process in rank)],
        env={**os.environ, "PYTHONPATH": "src"},
        capture_output=True,
        text=True,
    )
    assert done.stdout == "2 started, 0 left\n", done.stderr


def test_the_output_of_a_program_is_made_printable(rank: list[Process], tmp_path: Path) -> None:
    stacks = read_stacks(
        Host().files, rank, program(tmp_path, r"printf 'Thread 1 (idle): \033[31m\001\n    at \007x\n'")
    )
    assert stacks.text.replace("\n", "").isprintable()
    assert stacks.frame.startswith(r"at \x07x of process")
