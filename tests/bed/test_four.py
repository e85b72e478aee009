"""Four nodes are one engine as well: they come up, fall with the one that is lost, and come back by themselves."""

import signal
import time
from functools import partial
from pathlib import Path

import pytest
from tests.bed import victims
from tests.bed.conftest import MakeNode
from tests.bed.faults import COOLING_SECONDS
from tests.bed.pair import Cluster
from tests.bed.processes import wait_for
from tests.bed.sparkd_node import SparkdNode, complete
from tests.bed.trial import RECOVERY_SECONDS, stops

NODES = 4
START_SECONDS = 480.0
"""Ten processes import the whole of vLLM, on two cores."""
EVENT_SECONDS = 2.0
pytestmark = [pytest.mark.whole, pytest.mark.timeout(1800)]


@pytest.fixture(scope="module")
def cluster(make_node: MakeNode, package: Path) -> Cluster:
    """Serving."""
    made = Cluster.of([make_node("trixie", package) for _ in range(NODES)])
    made.configure()
    made.start()
    made.await_serving(START_SECONDS)
    return made


def is_serving(member: SparkdNode) -> bool:
    return member.phase() == "serving"


def test_four_nodes_serve_as_one_engine(cluster: Cluster) -> None:
    for rank, member in enumerate(cluster.members):
        wait_for(partial(is_serving, member), 5, f"rank {rank} to serve")
        assert member.containers() == [f"sparkd-rank{rank}"]
    assert complete(cluster.head.node)


def test_all_fall_with_one_that_is_lost_name_it_and_come_back(cluster: Cluster) -> None:
    lost = cluster.members[2]
    before, began = cluster.moment(), time.monotonic()
    lost.node.kill(victims.main_of_engine(lost), signal.SIGKILL)
    stopped, gap = stops(before, began, EVENT_SECONDS + 30)
    assert stopped <= EVENT_SECONDS
    assert gap <= EVENT_SECONDS
    cluster.await_serving(START_SECONDS)
    took = time.monotonic() - began
    for member, cursor in zip(cluster.members, before.cursors, strict=True):
        if member is lost:
            continue
        (line,) = member.ends_since(cursor)
        assert line.startswith("code=14 ")
        assert lost.node.fabric_address in line, f"{member.node.name} says: {line}"
    engine = cluster.head.engine_seconds(before.cursors[0])
    assert engine is not None
    assert took <= engine + COOLING_SECONDS + RECOVERY_SECONDS
