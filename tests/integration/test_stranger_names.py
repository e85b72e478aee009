"""What a local user names his processes and control groups proves nothing, and costs the agent little time."""

import os
import secrets
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.integration.stranger import UID, Stranger
from tests.unit.wire import reserved_port

from sparkd.agent.preflight.check import Level, Verdict
from sparkd.agent.preflight.checks.ports import Ports, WantedPort
from sparkd.agent.preflight.checks.stray_workers import StrayWorkers
from sparkd.agent.preflight.fixes import Identity
from sparkd.base.host import Host
from sparkd.base.host.processes import Process

pytestmark = pytest.mark.alone
USER = f"uid {UID}"
NAME = """\
import ctypes, os, platform, sys, time
libc = ctypes.CDLL(None)
def name(text):
    libc.prctl(15, text, 0, 0, 0)
"""
ORPHAN = f"""{NAME}
if os.fork() or os.fork():  # its group has lost its leader, as that of a killed engine has
    os._exit(0)
name(b"VLLM::EngineCor")
print("ready", os.getpid(), flush=True)
CLONE, CLONE_VFORK, SIGCHLD = {{"x86_64": 56, "aarch64": 220}}[platform.machine()], 0x4000, 17
if len(sys.argv) > 1 and libc.syscall(CLONE, CLONE_VFORK | SIGCHLD, 0, 0, 0, 0) != 0:  # asleep (D) until the child ends
    pass
time.sleep(600)
"""
"""An orphan with an engine's name. With an argument it is asleep in the kernel."""
LISTENER = f"""{NAME}
import socket
held = socket.create_server(("127.0.0.1", int(sys.argv[1])))
name(b"VLLM::APIServer")
print("ready", flush=True)
time.sleep(600)
"""
"""A process with an engine's name that listens on the port of its argument."""
SETUID = f"""{NAME}
import pty, tempfile
folder = tempfile.mkdtemp()
program = folder + "/VLLM::EngineCor"
os.symlink("/bin/su", program)
pid, terminal = pty.fork()
if pid == 0:
    os.execv(program, ["VLLM::EngineCore"])
assert b":" in os.read(terminal, 64)  # its prompt
os.unlink(program)
os.rmdir(folder)
print("ready", pid, flush=True)
time.sleep(600)
"""
"""`su` under an engine's name, which waits at its prompt; its file is gone."""
IN_A_GROUP = f"""{NAME}
os.mkdir(sys.argv[1])
with open(sys.argv[1] + "/cgroup.procs", "w") as file:
    file.write(str(os.getpid()))
print("ready", flush=True)
time.sleep(600)
"""
"""A process that makes the control group of its argument, and enters it."""
CROWD = """\
import os, sys
os.chdir(sys.argv[1])
os.symlink("/bin/sh", "VLLM::Worker_TP")
os.mkfifo("never")
with open("chain", "w") as file:
    file.write('''
        if [ $1 -gt 0 ]; then
            sh chain $(($1 - 1)) $2
        else
            exec 3<>never
            for one in $(seq $2); do ./VLLM::Worker_TP -c "read line <&3" & done
        fi
        wait
    ''')
os.execv("/bin/sh", ["sh", "chain", *sys.argv[2:]])
"""
"""A chain of processes, and at its end many with an engine's name."""


def process(pid: int) -> Process:
    process = Host().processes().get(pid)
    assert process is not None
    return process


def strays(tried: frozenset[Identity] = frozenset()) -> Verdict:
    return StrayWorkers(tried=tried).run(Host())[1]


@pytest.mark.parametrize("asleep", [False, True], ids=["waiting", "asleep in the kernel"])
def test_a_process_of_a_user_with_an_engines_name_is_a_warning_that_needs_nobody(asleep: bool) -> None:
    with Stranger(ORPHAN, *(["asleep"] * asleep)) as stranger:
        pid = int(stranger.wait_for("ready").split()[1])
        state, deadline = "D" if asleep else "S", time.monotonic() + 5
        while process(pid).state != state and time.monotonic() < deadline:
            time.sleep(0.01)
        verdict = strays(frozenset({("end-process", pid, process(pid).start_time)}))
        assert process(pid).state == state
    assert f"pid {pid} has the name of an engine's process" in verdict.reason
    assert (verdict.level, verdict.fixes, verdict.offers, verdict.needs_person) == (Level.WARN, (), (), False)


def test_the_holder_of_the_plans_port_is_named_whatever_his_process_is_called() -> None:
    with reserved_port() as port, Stranger(LISTENER, str(port)) as stranger:
        stranger.wait_for("ready")
        verdict = Ports((WantedPort(port, "127.0.0.1", "the API", "args.port"),)).run(Host())[1]
    assert verdict.level is Level.BLOCK
    assert f"by pid {stranger.pid} (VLLM::APIServer) of {USER}" in verdict.reason


def test_a_setuid_program_under_an_engines_name_is_the_users_who_started_it() -> None:
    with Stranger(SETUID) as stranger:
        pid = int(stranger.wait_for("ready").split()[1])
        assert "Uid:\t64000\t0\t0\t0" in Path(f"/proc/{pid}/status").read_text(), "it runs with root's rights"
        verdict = strays()
    assert (verdict.level, verdict.fixes) == (Level.WARN, ())
    assert f"pid {pid} has the name" in verdict.reason
    assert verdict.reason.endswith(f"user {USER}")


@pytest.fixture
def delegated() -> Iterator[Path]:
    """A control group given to the stranger, as systemd gives one to each user's manager."""
    mounts = (line.split() for line in Path("/proc/mounts").read_text().splitlines())
    folder = next(Path(at) for _, at, kind, *_ in mounts if kind == "cgroup2") / f"stranger-{secrets.token_hex(4)}"
    folder.mkdir()
    for path in (folder, folder / "cgroup.procs"):
        os.chown(path, UID, UID)
    yield folder
    for group in (*folder.glob("*/"), folder):
        group.rmdir()


def test_a_control_group_named_after_a_container_is_no_container(delegated: Path) -> None:
    forged = delegated / f"docker-{'0123456789abcdef' * 4}.scope"
    enter = f"import time\nwhile {delegated.name!r} not in open('/proc/self/cgroup').read(): time.sleep(0.01)\n"
    with Stranger(enter + IN_A_GROUP, str(forged)) as stranger:
        (delegated / "cgroup.procs").write_text(str(stranger.pid))
        stranger.wait_for("ready")
        assert forged.name in Path(f"/proc/{stranger.pid}/cgroup").read_text()
        details = Host().details(process(stranger.pid))
        assert details is not None
        assert details.group.container_id == ""


@pytest.fixture
def folder() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp())
    os.chown(folder, UID, UID)
    yield folder
    shutil.rmtree(folder)


def test_a_crowd_of_names_is_read_in_a_time_that_grows_with_the_crowd_alone(folder: Path) -> None:
    depth, leaves = 900, 1100
    with Stranger(CROWD, str(folder), str(depth), str(leaves)):
        deadline = time.monotonic() + 20
        while (
            sum(process.comm == "VLLM::Worker_TP" for process in Host().processes()) < leaves
            and time.monotonic() < deadline
        ):
            time.sleep(0.1)
        began = time.process_time()
        facts, verdict = StrayWorkers().run(Host())
        took = time.process_time() - began
    assert facts.scanned >= depth + leaves
    assert verdict.level is Level.WARN
    assert len(verdict.reason) < 400
    assert f"of this kind are {leaves}" in verdict.reason
    assert took < 1.0
