"""The record of a rank as the real agent leaves it, and what `sparkd sweep` ends by it."""

import json
import os
import signal
import subprocess
from pathlib import Path

from tests.integration.agent_world import AGENT, World, world
from tests.unit.nodes import until

RECORD = "run/sparkd/private/rank.json"
INVOCATION = "a" * 32
"""Of the agent in its world."""


def sweep(node: World, invocation: str = "") -> tuple[int, str]:
    env = {"PATH": os.environ["PATH"], **({"INVOCATION_ID": invocation} if invocation else {})}
    process = node.run(*AGENT, "sweep", env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    output, _ = process.communicate(timeout=60)
    return process.returncode, output.decode()


def kill_agent(node: World) -> None:
    os.kill(node.agent_pid, signal.SIGKILL)
    node.exit_code(10)


def labels(node: World) -> dict[str, str]:
    (container_id,) = node.containers()
    described = node.docker("GET", f"/containers/{container_id}/json")
    assert isinstance(described, dict)
    labels: dict[str, str] = described["Config"]["Labels"]
    return labels


def test_a_rank_that_serves_is_nobodys_orphan_until_its_agent_is_killed() -> None:
    with world() as node:
        node.start_agent()
        node.await_phase("serving")
        record, report, named = node.read(RECORD), node.report, labels(node)
        assert named["io.sparkd.rank-id"] == record["rank_id"] == report["rank_id"] == record["epoch"]
        assert named["io.sparkd.invocation"] == record["invocation"] == INVOCATION
        assert (record["stage"], [record["container_id"]]) == ("ready", node.containers())
        inside = Path(f"/proc/{node.pid}/root/proc/{record['pid']}/stat").read_text().rpartition(")")[2].split()
        assert record["start_time"] == int(inside[19])
        for invocation in ("", INVOCATION, "b" * 32):
            assert sweep(node, invocation) == (0, "")
        kill_agent(node)
        assert node.read(RECORD) == record
        assert sweep(node, "b" * 32) == (0, ""), "another agent's end"
        segment = node.tree.segment("psm_0123abcd")
        node.tree.segment("psm_4567abcd")
        left = {"/dev/shm/psm_0123abcd": (segment.st_dev, segment.st_ino), "/dev/shm/psm_4567abcd": (segment.st_dev, 1)}
        node.tree.file(f"/{RECORD}", json.dumps({**record, "segments": left}))
        code, output = sweep(node, INVOCATION)
        assert (code, "stopped and removed container sparkd-rank0" in output) == (0, True)
        assert (node.containers(), node.read(RECORD)) == ([], {})
        assert os.listdir(node.root / "dev/shm") == ["psm_4567abcd"], "what the record names, if it is still that"


def test_a_container_that_comes_after_its_agent_was_killed_is_swept_by_a_half_written_record() -> None:
    with world() as node:
        node.control(hang={"create": 3})
        node.start_agent()
        node.until(lambda: "create" in node.control(), "docker to be called")
        record = node.read(RECORD)
        assert (record["stage"], record["container_id"], record["pid"]) == ("starting", "", 0)
        kill_agent(node)
        assert sweep(node, INVOCATION) == (0, ""), "there is nothing yet"
        until(node.containers, 10)
        assert labels(node)["io.sparkd.rank-id"] == record["rank_id"]
        code, _ = sweep(node)
        assert (code, node.containers(), node.read(RECORD)) == (0, [], {})


def test_a_rank_that_the_record_gives_to_the_living_agent_is_left_alone_whatever_its_labels_say() -> None:
    with world() as node:
        node.start_agent()
        node.await_phase("serving")
        file = node.root / RECORD
        text = file.read_text()
        file.write_text("")
        assert sweep(node) == (0, ""), "its labels name the living agent"
        file.write_text(text.replace(INVOCATION, "b" * 32))
        node.tree.file("/run/sparkd/owner.json", node_owner(node, "b" * 32))
        assert sweep(node) == (0, "")
        file.write_text("")
        code, output = sweep(node)
        assert code == 11
        assert "sparkd-rank0 is left alone: /run/sparkd/private/rank.json can't be read" in output
        assert node.containers()
        node.terminate()
        assert node.exit_code(30) == 0
        assert (node.containers(), file.exists()) == ([], False)


def node_owner(node: World, invocation: str) -> str:
    """The account of its living agent, with another invocation."""
    return (node.root / "run/sparkd/owner.json").read_text().replace(INVOCATION, invocation)
