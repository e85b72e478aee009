"""A reload exchanges the program of the agent, whose rank serves on."""

import argparse
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.tree import Tree
from tests.unit.agent.kept_ranks import kept_rank
from tests.unit.agent.left_ranks import guard_rank, left_rank
from tests.unit.agent_runs import World, end, run_agent
from tests.unit.agent_runs import record as in_main_loop
from tests.unit.rank_records import rank_record
from tests.unit.verdicts import present

from sparkd.agent.daemon.bootstrap import build_agent
from sparkd.base.host import Host
from sparkd.base.host.owner import HANDED, OWNER_LOCK
from sparkd.base.lib.errors import ExitCode
from sparkd.base.lib.journal_writer import Journal
from sparkd.base.lib.lock import open_lock, try_lock
from sparkd.base.lib.log import ProcessLog
from sparkd.base.lib.main_loop import SIGNALS, MainLoop
from sparkd.base.lib.systemd import Notifier
from sparkd.base.state.rank_record import read_rank
from sparkd.tools.cli import run as cli


@pytest.fixture(autouse=True)
def _unblocked() -> Iterator[None]:
    """A reload blocks signals for the next program, which here is none."""
    yield
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)


def test_a_program_that_cannot_be_executed_leaves_the_engine_to_the_next_agent(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "sparkd"
    program.write_text("#!/no/such/python\n")
    program.chmod(0o755)
    monkeypatch.setattr(sys, "argv", [str(program)])

    def reload() -> None:
        record = present(read_rank(Host(world.tree.root)).record)
        world.tree.process(record.pid, "sleep", start_time=record.start_time)
        guard_rank(world.tree)
        end(signal.SIGHUP)

    with pytest.raises(RuntimeError, match=f"{program} can't be executed"):
        run_agent(world, once={"serving": reload})
    assert world.rank is not None and world.rank.poll() is None, "the engine serves on"
    assert read_rank(Host(world.tree.root)).stays


def test_a_stop_that_another_thread_gets_in_the_last_moment_of_a_reload_is_obeyed() -> None:
    before = """\
import os, signal, sys, threading, time
from unittest.mock import MagicMock
from sparkd.agent.daemon.reloading import reload
from sparkd.base.lib.systemd import Notifier
from sparkd.base.lib.main_loop import MainLoop

threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
def stop():
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(0.1)
    return {}

with MainLoop(Notifier(), {}) as loop:
    loop.listen()
    sys.argv = ["/bin/true"]
    reload(MagicMock(loop=loop, actions=MagicMock(hand_on=stop)))
"""
    ended = subprocess.run([sys.executable, "-c", before], timeout=60, check=False)
    assert ended.returncode == -signal.SIGTERM, "the new program runs, and knows of no stop"


def leave_ended_rank(tree: Tree) -> None:
    with left_rank(tree, kept_rank()) as process:
        pass
    shutil.rmtree(tree.root / f"proc/{process.pid}")


def test_a_stop_during_a_reload_ends_the_rank_as_any_stop_and_not_by_a_sweep(left: World) -> None:
    def build(loop: MainLoop, notifier: Notifier, journal: Journal) -> bool:
        loop.endings.request_stop(signal.SIGTERM)
        agent = build_agent("head", loop, notifier, journal, ProcessLog(journal.put), {}, left.tree.root)
        agent.actions.release()
        return agent.rank.running is not None

    assert in_main_loop(build)[0]


def test_an_engine_that_ended_during_a_reload_has_its_own_cause(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    leave_ended_rank(world.tree)
    world.failing.set()
    lock = open_lock(world.tree.root / OWNER_LOCK[1:])
    assert try_lock(lock)
    monkeypatch.setenv(HANDED, f"{lock} {rank_record().invocation}")
    code, journal = run_agent(world)
    assert code is ExitCode.ENGINE_ENDED
    assert world.last_exit.reason.startswith("the engine ended while serving, ")
    assert world.last_exit.reason.endswith("RuntimeError: boom")
    assert "agent.reload.ended" in journal


def test_a_fault_of_the_machine_during_a_reload_is_a_line_and_no_traceback(
    world: World, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    leave_ended_rank(world.tree)
    lock = open_lock(world.tree.root / OWNER_LOCK[1:])
    assert try_lock(lock)
    monkeypatch.setenv(HANDED, f"{lock} {rank_record().invocation}")

    handlers = {number: signal.getsignal(number) for number in SIGNALS}
    uptime = world.tree.root / "proc/uptime"
    uptime.unlink()
    uptime.mkdir()
    code = cli.run_agent(argparse.Namespace(role="head"), world.tree.root)
    assert code == ExitCode.BLOCKED, "is_left counts it as no end of a rank"
    for number, handler in handlers.items():
        signal.signal(number, handler)
    (line,) = [line for line in capfd.readouterr().out.splitlines() if "agent.run.refused" in line]
    assert "Is a directory" in line


def test_a_child_of_the_program_before_a_reload_is_reaped() -> None:
    after = """\
import os, time
from sparkd.agent.daemon.reloading import reap_inherited

reap_inherited()
deadline = time.monotonic() + 20
while open(f"/proc/self/task/{os.getpid()}/children").read() and time.monotonic() < deadline:
    time.sleep(0.05)
print(open(f"/proc/self/task/{os.getpid()}/children").read(), "is left")
"""
    before = """\
import glob, os, subprocess, sys, threading
threading.Thread(target=subprocess.run, args=(("sleep", "1"),), daemon=True).start()
while not any(open(path).read() for path in glob.glob("/proc/self/task/*/children")):
    pass
os.execv(sys.executable, [sys.executable, "-c", sys.argv[1]])
"""
    ended = subprocess.run(
        [sys.executable, "-c", before, after], capture_output=True, text=True, timeout=60, check=True
    )
    assert ended.stdout == " is left\n"
