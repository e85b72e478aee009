"""An agent leaves its rank, which serves, to the next one, or takes over what another one has left."""

import argparse
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import pytest
from msgspec.structs import replace
from tests.tree import Tree
from tests.unit.agent.kept_ranks import kept_rank
from tests.unit.agent.opened_files import opened_by_main_thread
from tests.unit.agent_runs import World, end, run_agent
from tests.unit.agent_runs import record as in_main_loop
from tests.unit.rank_records import rank_record
from tests.unit.verdicts import present

from sparkd.agent.daemon.bootstrap import build_agent
from sparkd.agent.daemon.configuration_stamp import FORM, digest_stamp
from sparkd.agent.daemon.context import Agent
from sparkd.agent.daemon.kept_rank import FILE as KEPT
from sparkd.agent.daemon.kept_rank import KeptRank
from sparkd.base.host import Host
from sparkd.base.host.owner import HANDED, OWNER_LOCK
from sparkd.base.lib.errors import BlockedError, Cause, ConfigError, ExitCode
from sparkd.base.lib.lock import open_lock, try_lock
from sparkd.base.lib.log import ProcessLog
from sparkd.base.lib.main_loop import SIGNALS, MainLoop
from sparkd.base.lib.systemd import Journal, Notifier
from sparkd.base.state import launch_history
from sparkd.base.state.launch_history import End, LaunchHistory
from sparkd.base.state.rank_record import GUARD, RANK_FILE, RankStage, read_rank
from sparkd.tools.cli import run as cli

T = TypeVar("T")

GUARD_PID = 4100


@pytest.fixture(autouse=True)
def _unblocked() -> Iterator[None]:
    """A reload blocks signals for the next program, which here is none."""
    yield
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)


def guard_rank(tree: Tree) -> None:
    """As with a guard, which would end the rank where no agent comes back."""
    record = present(read_rank(Host(tree.root)).record)
    tree.process(GUARD_PID, "sparkd-guard")
    tree.file(GUARD, f"0 {record.pid} {record.start_time} 77 88 {GUARD_PID} 100")


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


def leave_rank(tree: Tree, pid: int, kept: KeptRank) -> None:
    """As an agent that ended while process `pid` served."""
    began, container = int(Path(f"/proc/{pid}/stat").read_text().split()[21]), "c" * 64
    tree.file("/proc/sys/kernel/random/boot_id", "b1\n")
    tree.file("/proc/uptime", "5000.0 1.0\n")
    tree.process(pid, "sleep", start_time=began, cgroup=f"0::/system.slice/docker-{container}.scope")
    served = {"boot_id": "b1", "stage": RankStage.READY, "pid": pid, "start_time": began}
    tree.file(RANK_FILE.path, RANK_FILE.encode(rank_record(**served, container_id=container)))
    tree.file(KEPT.path, KEPT.encode(kept))
    guard_rank(tree)


@contextmanager
def left_rank(tree: Tree, kept: KeptRank) -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(["sleep", "60"]) as process:
        leave_rank(tree, process.pid, kept)
        yield process
        process.kill()


def leave_ended_rank(tree: Tree) -> None:
    with left_rank(tree, kept_rank()) as process:
        pass
    shutil.rmtree(tree.root / f"proc/{process.pid}")


def start_agent(tree: Tree, use: Callable[[Agent], T], role: str = "head") -> tuple[T, str]:
    """Start the next agent, and use it; what that returns, and the journal."""

    def start(loop: MainLoop, notifier: Notifier, journal: Journal) -> T:
        return use(build_agent(role, loop, notifier, journal, ProcessLog(journal.put), {}, tree.root))

    return in_main_loop(start)


def release(agent: Agent) -> None:
    agent.actions.release()


def test_a_start_without_what_may_come_back_is_no_crash(tree: Tree) -> None:
    """So the next one tries it again, for as long as the guard waits."""
    with (
        left_rank(tree, kept_rank("tiny-cpu-pair", nodes=("10.0.0.1", "10.0.0.2"))),
        pytest.raises(BlockedError, match="no cluster key"),
    ):
        start_agent(tree, release)
    assert RANK_FILE.decode((tree.root / RANK_FILE.path[1:]).read_bytes()).taken_over == ()


def test_a_unit_of_the_wrong_role_does_not_say_that_it_ends_the_rank(world: World) -> None:
    def refuse(loop: MainLoop, notifier: Notifier, journal: Journal) -> None:
        with pytest.raises(ConfigError, match="this node is rank 0, the head, not a worker"):
            build_agent("worker", loop, notifier, journal, ProcessLog(journal.put), {}, world.tree.root)

    with left_rank(world.tree, kept_rank()):
        _, journal = in_main_loop(refuse)
    assert "engine.rank.refused" not in journal


def test_a_rank_whose_process_is_in_another_container_is_refused_with_a_reason(world: World) -> None:
    with left_rank(world.tree, kept_rank()) as process:
        world.tree.file(f"/proc/{process.pid}/cgroup", "0::/system.slice/some.service\n")
        _, journal = start_agent(world.tree, release)
        assert process.poll() is None, "preflight decides"
    assert 'engine.rank.refused reason="its first process has just ended, or is in another container"' in journal


@pytest.fixture
def left(world: World) -> Iterator[World]:
    """Where an agent has left a rank."""
    with left_rank(world.tree, kept_rank()):
        yield world


def take_over(world: World) -> tuple[bool, str]:
    """Whether the next agent has taken the rank over, and its journal."""

    def is_taken_over(agent: Agent) -> bool:
        running = agent.rank.running
        assert running is not None and running.guard is not None
        running.guard.close()
        agent.actions.release()
        return running.taken_over

    return start_agent(world.tree, is_taken_over)


def test_a_full_run_keeps_no_agent_from_the_rank_that_serves(left: World) -> None:
    (left.tree.root / RANK_FILE.folder[1:]).chmod(0o777)  # refused likewise
    taken_over, journal = take_over(left)
    assert taken_over
    assert "state.write.failed file=rank.json" in journal


@pytest.mark.parametrize(("stamp", "differs"), [("6" * 64, False), (f"{FORM}{'6' * 64}", True)])
def test_a_stamp_that_another_version_made_otherwise_is_no_change_of_the_configuration(
    world: World, stamp: str, differs: bool
) -> None:
    with left_rank(world.tree, replace(kept_rank(), stamp=stamp)):
        _, journal = take_over(world)
    assert ("engine.configuration.changed" in journal) is differs


def test_a_disk_that_hangs_keeps_no_agent_from_the_rank_since_the_main_thread_opens_nothing_there(left: World) -> None:
    with opened_by_main_thread() as opened:
        taken_over, _ = take_over(left)
    assert taken_over
    assert [path for path in opened if "/var/lib/" in path] == []
    assert [path for path in opened if "/etc/sparkd" in path] == [], "a link there may lead to a share"
    assert [path for path in opened if "/run/sparkd/" in path], "these are seen"


def test_an_agent_that_takes_a_rank_over_is_ready_once_its_report_says_that_it_serves(
    left: World, notifications: Callable[[], list[str]]
) -> None:
    left.tree.folder("/var/lib/sparkd/history.db")  # the look at earlier launches would publish it by the way
    taken_over, journal = take_over(left)
    assert taken_over and "history.read.failed" in journal
    messages = notifications()
    assert messages.index("STATUS=serving") < messages.index("READY=1")


def test_the_end_before_the_launch_of_a_rank_is_not_reported_by_an_agent_that_takes_it_over(left: World) -> None:
    ended = LaunchHistory(last_exit=End("no image", 11, "pull it", cause=Cause.IMAGE_MISSING))
    left.tree.file(launch_history.FILE.path, launch_history.FILE.encode(ended))
    taken_over, _ = take_over(left)
    assert taken_over
    assert left.read("run/sparkd/report.json")["last_cause"] == ""


def test_a_stop_during_a_reload_ends_the_rank_as_any_stop_and_not_by_a_sweep(left: World) -> None:
    def build(loop: MainLoop, notifier: Notifier, journal: Journal) -> bool:
        loop.endings.request_stop(signal.SIGTERM)
        agent = build_agent("head", loop, notifier, journal, ProcessLog(journal.put), {}, left.tree.root)
        agent.actions.release()
        return agent.rank.running is not None

    assert in_main_loop(build)[0]


def test_a_new_cluster_key_is_no_configuration_that_counts_at_the_next_restart(world: World) -> None:
    def read_stamp(agent: Agent) -> str:
        agent.actions.release()
        return digest_stamp(agent)

    stamps = []
    for name in ("", "cluster.key", "head.pub", "conf.d/more.toml"):
        if name:
            world.tree.file(f"/etc/sparkd/{name}", "# new\n")
        stamps += [start_agent(world.tree, read_stamp)[0]]
    assert stamps[:2] == stamps[1:3]
    assert stamps[3] != stamps[2]


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
