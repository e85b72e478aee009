"""A rank that runs as a person's uid: what it leaves goes at the next start, what the person has stays.

By name, age or owner the one is as the other: all segments here have an engine's names, and all but the person's
first are old and used by no process.
"""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.integration.agent_world import World, configuration, world

from sparkd.agent.preflight.runner import IDS

UID = 1000
RECORD = "run/sparkd/private/rank.json"
MADE, MADE_LATE = ("psm_0123abcd", "sem.mp-a8x_0lk2"), "psm_89abcdef"
"""By the rank, the last one while it serves."""
HELD, KEPT, LATER = "psm_aaaa0001", "psm_aaaa0002", "psm_aaaa0003"
"""Of the person: with a process; kept without one; the same, made while the rank ran."""
SKIPPED = [check for check in IDS if check not in ("stray-workers", "shared-memory")]
CHECKED = configuration().replace("preflight.skip", "#", 1) + f"preflight.skip = {SKIPPED}\n"
PERSON = """
import ctypes, mmap, sys, time
ctypes.CDLL(None).prctl(15, b"VLLM::Worker_TP0", 0, 0, 0)
with open(f"/dev/shm/{sys.argv[1]}", "ab+") as file:
    file.truncate(4096)
    area = mmap.mmap(file.fileno(), 4096)
print("up", flush=True)
time.sleep(600)
"""


def keep(node: World, name: str) -> None:
    file = node.root / "dev/shm" / name
    file.write_bytes(b"x" * 4096)
    os.chown(file, UID, UID)


def age(node: World) -> None:
    """All segments: nobody has written to one for an hour."""
    then = time.time() - 3600
    for file in (node.root / "dev/shm").iterdir():
        os.utime(file, (then, then))


def start_person(node: World, segment: str) -> subprocess.Popen[bytes]:
    """With a segment, which it makes where there is none, and the name of an engine's process."""
    rights = ("setpriv", f"--reuid={UID}", f"--regid={UID}", "--clear-groups")
    person = node.run(*rights, sys.executable, "-I", "-S", "-c", PERSON, segment, stdout=subprocess.PIPE)
    assert person.stdout is not None
    assert person.stdout.readline() == b"up\n"
    return person


def kill_all(node: World) -> None:
    """The agent, and each process of its rank, as the kernel ends a container's with the first."""
    kill(node, "KILL", node_pid(node), *rank_pids(node))
    assert node.exit_code(10) != 0


def kill(node: World, name: str, *pids: int) -> None:
    assert node.run("kill", f"-{name}", *map(str, pids)).wait(10) == 0


def rank_pids(node: World) -> tuple[int, ...]:
    """The container's first process, and that below it, as its own node counts."""
    pid = int(str(node.read(RECORD)["pid"]))
    below = (node.root / f"proc/{pid}/task/{pid}/children").read_text()
    return pid, *map(int, below.split())


def recorded(node: World) -> set[str]:
    segments = node.read(RECORD)["segments"]
    assert isinstance(segments, dict)
    return {path.removeprefix("/dev/shm/") for path in segments}


def node_pid(node: World) -> int:
    """The agent's, as its own node counts."""
    status = Path(f"/proc/{node.agent_pid}/status").read_text()
    return int(status.partition("NSpid:")[2].splitlines()[0].split()[-1])


def start_next(node: World) -> None:
    (node.root / "run/sparkd/report.json").unlink()
    node.control(engine=["8000", "serving"])
    node.start_agent(INVOCATION_ID="b" * 32)
    node.await_phase("serving")


@pytest.mark.parametrize("removed", [False, True], ids=["its container is left", "its container was removed by hand"])
def test_what_a_killed_rank_leaves_goes_at_the_next_start_and_what_a_person_of_its_uid_has_stays(removed: bool) -> None:
    with world() as node:
        node.configure(CHECKED)
        keep(node, KEPT)
        person = start_person(node, HELD)
        node.control(user=UID, engine=["8000", "serving", "shares", MADE_LATE, *MADE])
        node.start_agent()
        node.await_phase("serving")
        assert recorded(node) == {*MADE}
        kill(node, "USR1", rank_pids(node)[1])
        node.until(lambda: recorded(node) == {*MADE, MADE_LATE}, "the segment that it makes while it serves")
        keep(node, LATER)
        kill_all(node)
        age(node)
        assert {file.stat().st_uid for file in (node.root / "dev/shm").iterdir()} == {UID}
        assert len(os.listdir(node.root / "dev/shm")) == 6
        if removed:
            node.docker("DELETE", f"/containers/{node.read(RECORD)['container_id']}")
        start_next(node)
        assert sorted(os.listdir(node.root / "dev/shm")) == [HELD, KEPT, LATER], "\n".join(node.lines)
        assert node.read(RECORD)["segments"] == {}
        assert person.poll() is None
        node.terminate()
        assert node.exit_code(30) == 0
        assert sorted(os.listdir(node.root / "dev/shm")) == [HELD, KEPT, LATER]
        assert not (node.root / RECORD).exists()


def test_what_is_in_use_at_the_next_start_goes_with_the_next_rank() -> None:
    with world() as node:
        node.configure(CHECKED)
        node.control(user=UID, engine=["8000", "serving", "shares", MADE_LATE, *MADE])
        node.start_agent()
        node.await_phase("serving")
        person = start_person(node, MADE[0])
        kill_all(node)
        start_next(node)
        assert (os.listdir(node.root / "dev/shm"), recorded(node)) == ([MADE[0]], {MADE[0]})
        (below,) = Path(f"/proc/{person.pid}/task/{person.pid}/children").read_text().split()
        os.kill(int(below), signal.SIGKILL)
        person.wait(10)
        node.terminate()
        assert node.exit_code(30) == 0
        assert os.listdir(node.root / "dev/shm") == []
