"""The record of a rank as the real agent leaves it, and what `sparkd sweep` ends by it."""

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
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


def read_labels(node: World) -> dict[str, str]:
    (container_id,) = node.containers()
    described = node.docker("GET", f"/containers/{container_id}/json")
    assert isinstance(described, dict)
    return dict(described["Config"]["Labels"])


@contextmanager
def serving_world() -> Iterator[World]:
    with world() as node:
        node.start_agent()
        node.await_phase("serving")
        yield node


def test_the_record_names_the_rank_and_its_container() -> None:
    with serving_world() as node:
        record, report, rank_labels = node.read(RECORD), node.report, read_labels(node)
        assert rank_labels["io.sparkd.rank-id"] == record["rank_id"] == report["rank_id"] == record["epoch"]
        assert rank_labels["io.sparkd.invocation"] == record["invocation"] == INVOCATION
        assert record["stage"] == "ready"
        assert [record["container_id"]] == node.containers()
        inside = Path(f"/proc/{node.pid}/root/proc/{record['pid']}/stat").read_text().rpartition(")")[2].split()
        assert record["start_time"] == int(inside[19])


def test_the_rank_of_a_living_agent_is_nobodys_orphan() -> None:
    with serving_world() as node:
        for invocation in ("", INVOCATION, "b" * 32):
            assert sweep(node, invocation) == (0, "")
        assert node.containers()


def test_the_rank_of_a_killed_agent_is_swept_with_what_its_record_names() -> None:
    with serving_world() as node:
        record = node.read(RECORD)
        kill_agent(node)
        assert node.read(RECORD) == record
        assert sweep(node, "b" * 32) == (0, ""), "another agent's end"
        assert node.containers()
        segment = node.tree.segment("psm_0123abcd")
        node.tree.segment("psm_4567abcd")
        left = {"/dev/shm/psm_0123abcd": (segment.st_dev, segment.st_ino), "/dev/shm/psm_4567abcd": (segment.st_dev, 1)}
        node.tree.file(f"/{RECORD}", json.dumps({**record, "segments": left}))
        code, output = sweep(node, INVOCATION)
        assert code == 0
        assert "stopped and removed container sparkd-rank0" in output
        assert node.containers() == []
        assert node.read(RECORD) == {}
        assert os.listdir(node.root / "dev/shm") == ["psm_4567abcd"], "what the record names, if it is still that"


def test_a_container_that_comes_after_its_agent_was_killed_is_swept_by_a_half_written_record() -> None:
    with world() as node:
        node.control(hang={"create": 3})
        node.start_agent()
        node.until(lambda: "create" in node.control(), "docker to be called")
        record = node.read(RECORD)
        assert record["stage"] == "starting"
        assert record["container_id"] == ""
        assert record["pid"] == 0
        kill_agent(node)
        assert sweep(node, INVOCATION) == (0, ""), "there is nothing yet"
        until(node.containers, 10)
        assert read_labels(node)["io.sparkd.rank-id"] == record["rank_id"]
        code, _ = sweep(node)
        assert code == 0
        assert node.containers() == []
        assert node.read(RECORD) == {}


def test_a_rank_that_the_record_gives_to_the_living_agent_is_left_alone_whatever_its_labels_say() -> None:
    with serving_world() as node:
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
        assert node.containers() == []
        assert not file.exists()


def node_owner(node: World, invocation: str) -> str:
    """The account of its living agent, with another invocation."""
    return (node.root / "run/sparkd/owner.json").read_text().replace(INVOCATION, invocation)
