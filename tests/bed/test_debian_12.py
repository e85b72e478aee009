"""A rank outlives its agent under Debian 12's systemd 252 and docker 20.10, too, and ends where it has to."""

from pathlib import Path

import pytest
from tests.bed import crashes
from tests.bed.conftest import MakeNode
from tests.bed.crashes import CRASHES, TAKING_OVER, Crash
from tests.bed.pair import Cluster
from tests.bed.processes import wait_for

pytestmark = pytest.mark.whole
KILLED_TWICE = TAKING_OVER[0]


@pytest.fixture(scope="module")
def cluster(make_node: MakeNode, package: Path) -> Cluster:
    """Installed and configured, nothing started."""
    made = Cluster.of([make_node("docker-bookworm", package) for _ in range(2)])
    assert "systemd 252" in made.head.node.run("systemctl", "--version").stdout
    assert made.head.node.run("docker", "version", "--format", "{{.Server.Version}}").stdout.startswith("20.10.")
    made.configure()
    return made


@pytest.fixture
def serving(cluster: Cluster) -> Cluster:
    cluster.settle()
    return cluster


@pytest.mark.parametrize("crash", [pytest.param(crash, id=crash.name) for crash in (*CRASHES, KILLED_TWICE)])
def test_the_engine_outlives_its_agent_and_no_request_is_lost(serving: Cluster, crash: Crash) -> None:
    crashes.outlive(crash, serving)


def test_a_stop_right_after_a_crash_ends_the_rank(serving: Cluster) -> None:
    before = serving.moment()
    crashes.kill(serving.head)
    serving.head.node.run("systemctl", "stop", serving.head.unit)
    wait_for(lambda: before.gone(0), 20, "the end of the head's rank")
    assert not serving.head.containers()


def test_a_masked_unit_gives_its_rank_up(serving: Cluster) -> None:
    """The guard ends it 60 s after its agent."""
    before, head = serving.moment(), serving.head
    head.node.run("systemctl", "mask", "--runtime", head.unit)
    try:
        crashes.kill(head)
        wait_for(lambda: before.gone(0), 75, "the end of the head's rank")
    finally:
        head.node.run("systemctl", "unmask", "--runtime", head.unit)
