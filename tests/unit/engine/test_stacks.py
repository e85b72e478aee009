"""Stacks of a rank that hangs: real processes of this machine, and programs in place of py-spy."""

import os
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import psutil
import pytest
from msgspec.structs import replace
from tests.tree import Tree
from tests.unit.clock import unstalled
from tests.unit.nodes import until

from sparkd.agent.actions import Actions
from sparkd.agent.actions.kept_folders import KEPT_STACKS
from sparkd.agent.engine.stacks import OUTPUT_BYTES, PROGRAMS, PYTHON_SECONDS, read_stacks
from sparkd.base.host import Host
from sparkd.base.host.owner import NodeOwner
from sparkd.base.host.processes import Process, read_process
from sparkd.base.lib.main_loop import MainLoop
from sparkd.base.lib.redaction import Redaction
from sparkd.base.lib.systemd import Notifier
from sparkd.base.state.file import STACKS

HANG = """
import ctypes, sys, time
ctypes.CDLL(None).prctl(15, sys.argv[1].encode(), 0, 0, 0)
def waits_for_ever():
    print(flush=True)
    time.sleep(60)
waits_for_ever()
"""
HAS_PY_SPY = any(os.access(path, os.X_OK) for path in PROGRAMS)


@pytest.fixture
def rank() -> Iterator[list[Process]]:
    """An engine core and a worker, in Python."""
    with ExitStack() as stack:
        processes = []
        for name in ("VLLM::EngineCor", "VLLM::Worker_TP"):
            process = stack.enter_context(
                subprocess.Popen([sys.executable, "-c", HANG, name, "api-key=secret"], stdout=subprocess.PIPE)
            )
            stack.callback(process.kill)
            assert process.stdout is not None
            process.stdout.readline()
            until(lambda of=process: read(of.pid).state == "S")  # type: ignore[misc]  # bound now
            processes.append(read(process.pid))
        yield processes


def read(pid: int) -> Process:
    process = read_process(Host().files, pid)
    assert process is not None
    return process


def program(tmp_path: Path, text: str) -> tuple[str]:
    path = tmp_path / "program"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return (str(path),)


def test_the_kernels_stacks_are_there_without_py_spy(rank: list[Process]) -> None:
    stacks = read_stacks(Host().files, rank, ())
    assert (stacks.count, stacks.frame) == (2, "")
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
    assert len(endless.text) < 2 * OUTPUT_BYTES + 20_000


def test_no_more_than_eight_programs_run_at_once(rank: list[Process], tmp_path: Path) -> None:
    workers = [replace(rank[1], pid=pid) for pid in range(1, 10)]
    stacks = read_stacks(Host().files, [*workers, *rank], program(tmp_path, "echo begun"))
    assert (stacks.count, stacks.text.count("begun")) == (11, 8)


def test_where_a_second_program_cannot_be_started_the_first_is_ended(rank: list[Process], tmp_path: Path) -> None:
    commands = list[object]()

    def refuse_second(event: str, args: tuple[object, ...]) -> None:
        if event == "subprocess.Popen" and args[0] == str(tmp_path / "program"):
            commands.append(args[1])
            if len(commands) == 2:
                raise BlockingIOError("no more processes")

    sys.addaudithook(refuse_second)
    with pytest.raises(BlockingIOError):
        read_stacks(Host().files, rank, program(tmp_path, "exec sleep 60"))
    assert len(commands) == 2
    until(
        lambda: (
            {child.pid for child in psutil.Process().children() if child.status() != "zombie"}
            == {process.pid for process in rank}
        )
    )


def test_the_output_of_a_program_is_made_printable(rank: list[Process], tmp_path: Path) -> None:
    stacks = read_stacks(
        Host().files, rank, program(tmp_path, r"printf 'Thread 1 (idle): \033[31m\001\n    at \007x\n'")
    )
    assert stacks.text.replace("\n", "").isprintable()
    assert stacks.frame.startswith(r"at \x07x of process")


def test_the_last_ten_are_kept_for_root_and_without_secrets(tree: Tree) -> None:
    actions = Actions.acquire(Host(tree.root), MainLoop(Notifier(), {}), NodeOwner(os.getpid(), "a test", "x"))
    for number in range(KEPT_STACKS + 3):
        path = actions.write_stacks(
            f"2026010{number // 10}T00000{number % 10}Z.txt", lambda: Redaction()("token=abcdefgh")
        )
        assert path.startswith(f"{STACKS}/2026")
    folder = tree.root / STACKS.lstrip("/")
    kept = sorted(folder.iterdir())
    assert (kept[0].name, len(kept)) == ("20260100T000003Z.txt", KEPT_STACKS)
    assert "abcdefgh" not in kept[-1].read_text()
    assert stat.S_IMODE(kept[-1].stat().st_mode) == 0o600
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
