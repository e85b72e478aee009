"""A rank that runs as a person's uid: the next start removes the rank's segments and keeps the person's.

Neither name nor owner nor age distinguishes them: every segment has a name that engines give, and the same owner.
In the first test all were last written an hour before the next start, and only PERSON_MAPPED is mapped by a process
then. In the second test a process of the person maps a segment of the rank.
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
RANK_SEGMENTS = ("psm_0123abcd", "sem.mp-a8x_0lk2")
"""The rank makes them before it serves."""
RANK_LATE_SEGMENT = "psm_89abcdef"
"""The rank makes it while it serves."""
PERSON_MAPPED = "psm_aaaa0001"
"""A process of the person maps it."""
PERSON_UNMAPPED = "psm_aaaa0002"
"""The person made it before the rank started, and no process maps it."""
PERSON_LATE = "psm_aaaa0003"
"""The person made it while the rank ran, and no process maps it."""
PERSON_SEGMENTS = [PERSON_MAPPED, PERSON_UNMAPPED, PERSON_LATE]
SKIPPED = [check for check in IDS if check not in ("stray-workers", "shared-memory")]
CHECKED = configuration().replace("preflight.skip", "#", 1) + f"preflight.skip = {SKIPPED}\n"
PERSON_PROGRAM = """
import ctypes, mmap, sys, time
ctypes.CDLL(None).prctl(15, b"VLLM::Worker_TP0", 0, 0, 0)
with open(f"/dev/shm/{sys.argv[1]}", "ab+") as file:
    file.truncate(4096)
    area = mmap.mmap(file.fileno(), 4096)
print("up", flush=True)
time.sleep(600)
"""


def make_segment(node: World, name: str) -> None:
    """Make a segment of the person that no process maps."""
    file = node.root / "dev/shm" / name
    file.write_bytes(b"x" * 4096)
    os.chown(file, UID, UID)


def segments(node: World) -> list[str]:
    return sorted(os.listdir(node.root / "dev/shm"))


def date_back(node: World) -> None:
    """Date the last write to every segment back by an hour."""
    hour_ago = time.time() - 3600
    for file in (node.root / "dev/shm").iterdir():
        os.utime(file, (hour_ago, hour_ago))


def start_person(node: World, segment: str) -> subprocess.Popen[bytes]:
    """Start a process of the person's that has an engine's name and maps a segment, which it makes if there is none."""
    rights = ("setpriv", f"--reuid={UID}", f"--regid={UID}", "--clear-groups")
    person = node.run(*rights, sys.executable, "-I", "-S", "-c", PERSON_PROGRAM, segment, stdout=subprocess.PIPE)
    assert person.stdout is not None
    assert person.stdout.readline() == b"up\n"
    return person


def kill_all(node: World) -> None:
    """Kill the agent and every process of its rank: the kernel kills all of a container when its first one ends."""
    kill(node, "KILL", node_pid(node), *rank_pids(node))
    assert node.exit_code(10) != 0


def kill(node: World, name: str, *pids: int) -> None:
    assert node.run("kill", f"-{name}", *map(str, pids)).wait(10) == 0


def rank_pids(node: World) -> tuple[int, ...]:
    """Pids of the container's first process and of its children, in the node's own PID namespace."""
    pid = int(str(node.read(RECORD)["pid"]))
    below = (node.root / f"proc/{pid}/task/{pid}/children").read_text()
    return pid, *map(int, below.split())


def recorded(node: World) -> set[str]:
    by_path = node.read(RECORD)["segments"]
    assert isinstance(by_path, dict)
    return {path.removeprefix("/dev/shm/") for path in by_path}


def node_pid(node: World) -> int:
    """Pid of the agent in the node's own PID namespace."""
    status = Path(f"/proc/{node.agent_pid}/status").read_text()
    return int(status.partition("NSpid:")[2].splitlines()[0].split()[-1])


def start_next(node: World) -> None:
    (node.root / "run/sparkd/report.json").unlink()
    node.control(engine=["8000", "serving"])
    node.start_agent(INVOCATION_ID="b" * 32)
    node.await_phase("serving")


@pytest.mark.parametrize("removed", [False, True], ids=["its container is left", "its container was removed by hand"])
def test_the_next_start_removes_a_killed_ranks_segments_and_keeps_those_of_a_person_of_its_uid(removed: bool) -> None:
    with world() as node:
        node.configure(CHECKED)
        make_segment(node, PERSON_UNMAPPED)
        person = start_person(node, PERSON_MAPPED)
        node.control(user=UID, engine=["8000", "serving", "shares", RANK_LATE_SEGMENT, *RANK_SEGMENTS])
        node.start_agent()
        node.await_phase("serving")
        assert recorded(node) == {*RANK_SEGMENTS}
        kill(node, "USR1", rank_pids(node)[1])
        node.until(
            lambda: recorded(node) == {*RANK_SEGMENTS, RANK_LATE_SEGMENT}, "the segment that it makes while it serves"
        )
        make_segment(node, PERSON_LATE)
        kill_all(node)
        date_back(node)
        assert {file.stat().st_uid for file in (node.root / "dev/shm").iterdir()} == {UID}
        assert len(segments(node)) == 6
        if removed:
            node.docker("DELETE", f"/containers/{node.read(RECORD)['container_id']}")
        start_next(node)
        assert segments(node) == PERSON_SEGMENTS, "\n".join(node.lines)
        assert node.read(RECORD)["segments"] == {}
        assert person.poll() is None
        node.terminate()
        assert node.exit_code(30) == 0
        assert segments(node) == PERSON_SEGMENTS
        assert not (node.root / RECORD).exists()


def test_a_segment_in_use_at_the_next_start_is_removed_with_the_next_rank() -> None:
    with world() as node:
        node.configure(CHECKED)
        node.control(user=UID, engine=["8000", "serving", "shares", RANK_LATE_SEGMENT, *RANK_SEGMENTS])
        node.start_agent()
        node.await_phase("serving")
        person = start_person(node, RANK_SEGMENTS[0])
        kill_all(node)
        start_next(node)
        assert (segments(node), recorded(node)) == ([RANK_SEGMENTS[0]], {RANK_SEGMENTS[0]})
        (below,) = Path(f"/proc/{person.pid}/task/{person.pid}/children").read_text().split()
        os.kill(int(below), signal.SIGKILL)
        person.wait(10)
        node.terminate()
        assert node.exit_code(30) == 0
        assert segments(node) == []
