"""Ray joins the nodes where a recipe says so: real vLLM on real Ray comes up, falls together, and comes back."""

import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from tests.bed import ray_image
from tests.bed.conftest import MakeNode
from tests.bed.pair import Cluster
from tests.bed.processes import wait_for
from tests.bed.sparkd_node import complete

RECIPE = f"""\
schema: 1
name: tiny-cpu-ray
extends: tiny-cpu-pair
executor: ray
image:
  ref: {ray_image.NAME}
"""
RAYLET = r"ray/core/src/ray/raylet/raylet "
RANK = r"^ray::RayWorkerProc"
START_SECONDS = 300.0
FALL_SECONDS = 15.0
"""The container ends a second after its raylet; the other node's agent acts on that at once."""
pytestmark = pytest.mark.timeout(900)


@pytest.fixture(scope="module")
def cluster(make_node: MakeNode, package: Path) -> Cluster:
    """Serving."""
    made = Cluster.of([make_node("trixie", package) for _ in range(2)])
    made.configure()
    with ThreadPoolExecutor() as pool:
        list(pool.map(lambda member: ray_image.make(member.node), made.members))
    text = made.configuration().replace("tiny-cpu-pair", "tiny-cpu-ray")
    for member in made.members:
        member.node.write("/etc/sparkd/recipes/tiny-cpu-ray.yaml", RECIPE)
        # Each node has made its image itself.
        member.configure(text.replace("[cluster]", "[cluster]\nallow_image_difference = true"))
    made.start()
    made.await_serving(START_SECONDS)
    return made


def test_the_pair_serves_on_ray_with_a_rank_on_each_node(cluster: Cluster) -> None:
    assert complete(cluster.head.node)
    for rank, member in enumerate(cluster.members):
        assert member.containers() == [f"sparkd-rank{rank}"]
        assert len(member.node.pids(RANK)) == 1
        wait_for(lambda of=member: of.phase() == "serving", 10, f"rank {rank} to serve")  # type: ignore[misc]  # bound
    assert not cluster.worker.node.pids("vllm serve")


def test_who_has_no_token_can_run_nothing_on_it(cluster: Cluster) -> None:
    """Not even beside the rank: the token is in no container's environment."""
    address = f"--address={cluster.head.node.fabric_address}:29501"
    done = cluster.worker.node.run("docker", "exec", "sparkd-rank1", "ray", "status", address, check=False)
    assert done.returncode != 0
    assert "token" in (done.stdout + done.stderr).lower(), done


def test_both_ranks_fall_with_a_workers_raylet_and_every_journal_says_why(cluster: Cluster) -> None:
    cursors = [member.cursor() for member in cluster.members]
    ranks = [member.node.found(RANK) for member in cluster.members]
    cluster.worker.node.kill(cluster.worker.pid(RAYLET), signal.SIGKILL)
    wait_for(lambda: not any(one.alive for rank in ranks for one in rank), FALL_SECONDS, "both ranks to fall")
    wait_for(lambda: all(m.ends_since(c) for m, c in zip(cluster.members, cursors, strict=True)), FALL_SECONDS, "ends")
    (head,), (worker,) = (m.ends_since(c) for m, c in zip(cluster.members, cursors, strict=True))
    assert worker.startswith("code=13 ")
    assert "raylet [exit code=-9]" in worker
    assert head.startswith("code=14 ")
    assert cluster.worker.node.fabric_address in head


@pytest.mark.whole
def test_the_endpoint_comes_back_by_itself(cluster: Cluster) -> None:
    cluster.await_serving(START_SECONDS)
