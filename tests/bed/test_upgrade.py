"""The package changed under a serving agent: nothing that it may need later is still to be read from there."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.bed.conftest import MakeNode
from tests.bed.processes import wait_for
from tests.bed.sparkd_node import HEAD, SparkdNode


@pytest.fixture(scope="module")
def spark(make_node: MakeNode, package: Path) -> SparkdNode:
    spark = SparkdNode(make_node("trixie"))
    spark.install(package)
    spark.configure()
    return spark


@pytest.fixture
def serving(spark: SparkdNode) -> SparkdNode:
    if not spark.serves():
        spark.forget_failures()
        spark.start()
    return spark


@pytest.fixture
def without_files(serving: SparkdNode) -> Iterator[SparkdNode]:
    """Serving, while the program and its libraries are gone from the disk."""
    serving.node.run("mv", "/usr/lib/sparkd", "/usr/lib/sparkd.away")
    yield serving
    serving.node.sh("test -d /usr/lib/sparkd || mv /usr/lib/sparkd.away /usr/lib/sparkd")


def said(spark: SparkdNode, agent: int) -> str:
    """What this one agent has said: not its engine, nor `sparkd sweep` after it, which can't run without its files."""
    lines = spark.node.run("journalctl", "--boot", "--no-pager", "--output=cat", f"_PID={agent}").stdout.splitlines()
    return "\n".join(line for line in lines if not line.startswith("engine| "))


def test_an_upgrade_leaves_the_agent_and_its_engine_alone(serving: SparkdNode) -> None:
    agent, containers = serving.main_pid(), serving.containers()
    serving.node.run("dpkg", "--install", *serving.node.sh("ls /root/sparkd_*.deb").stdout.split(), timeout=120)
    assert serving.serves()
    assert (serving.main_pid(), serving.containers()) == (agent, containers)


def test_a_stop_needs_nothing_of_the_files(without_files: SparkdNode) -> None:
    agent = without_files.main_pid()
    without_files.stop()
    assert without_files.containers() == []
    assert without_files.leftovers() == []
    assert "Traceback" not in said(without_files, agent)


def test_an_end_is_reported_without_the_files(without_files: SparkdNode) -> None:
    agent = without_files.main_pid()
    # Only this one agent is queried: the next could not start.
    without_files.node.write(f"/run/systemd/system/{HEAD}.service.d/once.conf", "[Service]\nRestart=no\n")
    without_files.node.run("systemctl", "daemon-reload")
    try:
        without_files.node.kill(without_files.pid("vllm serve"), signal.SIGKILL)
        wait_for(lambda: without_files.show("ActiveState") == "failed", 60, "the unit to fail")
        assert without_files.exit_status() == 13, said(without_files, agent)
        assert "Traceback" not in said(without_files, agent)
    finally:
        without_files.node.run("rm", "-r", f"/run/systemd/system/{HEAD}.service.d")
        without_files.node.run("systemctl", "daemon-reload")
