"""A rank outlives its agent also where more goes wrong at that moment, and its dockerd where live-restore is on."""

import json
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import pytest
from tests.bed import crashes, slow_prefill
from tests.bed.conftest import MakeNode
from tests.bed.crashes import CRASHES, LIVE_RESTORE, TAKING_OVER, Crash
from tests.bed.pair import Cluster
from tests.bed.processes import wait_for
from tests.bed.sparkd_node import SparkdNode

from sparkd.base.host import docker_config
from sparkd.base.state import rank_record

pytestmark = pytest.mark.whole
PATIENT = "agent_return_seconds = 40 # two crashes one after the other, on two cores that others use too\n"
PIECE_SECONDS, PREFILL_SECONDS = 10.0, 120.0
ACTS = (crashes.kill, crashes.reload)


@pytest.fixture(scope="module")
def cluster(make_node: MakeNode, package: Path) -> Cluster:
    """Installed and configured, nothing started."""
    made = Cluster.of([make_node("trixie", package) for _ in range(2)])
    made.configure(PATIENT)
    return made


@pytest.fixture
def serving(cluster: Cluster) -> Cluster:
    cluster.settle()
    return cluster


@pytest.fixture
def live_restore(serving: Cluster) -> Cluster:
    """As `sparkd init` says how to turn it on, beside ranks that were started without it."""
    for member in serving.members:
        member.node.sh(docker_config.KEEP_CONTAINERS.replace("sudo ", ""))
        on = "docker info --format '{{.LiveRestoreEnabled}}'"
        wait_for(lambda: "true" in member.node.sh(on).stdout, 10, "live-restore")  # noqa: B023
    return serving


@pytest.mark.parametrize("crash", [pytest.param(crash, id=crash.name) for crash in TAKING_OVER])
def test_the_engine_outlives_more_than_one_fault_and_no_request_is_lost(serving: Cluster, crash: Crash) -> None:
    crashes.outlive(crash, serving)


class Watch(NamedTuple):
    """The file of the guard, `rank_record.GUARD`: pids, and when these processes started."""

    floor_bytes: int
    rank: int
    rank_start: int
    agent: int
    agent_start: int
    guard: int
    guard_start: int


def guards(member: SparkdNode) -> list[int]:
    return member.node.pids("^sparkd-guard$")


@pytest.mark.parametrize("rank", [0, 1])
def test_a_guard_killed_with_its_agent_leaves_no_rank_without_a_guard(serving: Cluster, rank: int) -> None:
    """The rank may be taken over, or ended and started again."""
    member = serving.members[rank]
    old, (guard,) = member.main_pid(), guards(member)
    member.node.sh(f"kill -KILL {old} {guard}")
    wait_for(lambda: member.main_pid() not in (0, old) and guards(member) not in ([], [guard]), 20, "both to be back")
    serving.await_serving()
    wait_for(lambda: member.phase() == "serving", 20, "this node to serve")
    pid = json.loads(member.node.read("/run/sparkd/private/rank.json"))["pid"]
    watch = Watch(*map(int, member.node.read(rank_record.GUARD).split()))
    assert (watch.rank, watch.agent, [watch.guard]) == (pid, member.main_pid(), guards(member))


def test_a_reboot_right_after_the_agents_end_serves_again(serving: Cluster) -> None:
    before = serving.moment()
    serving.head.node.kill(serving.head.main_pid(), signal.SIGKILL)
    serving.head.node.run("systemctl", "reboot", check=False)
    wait_for(lambda: before.gone(0), 90, "the end of its rank")
    serving.head.node.wait_booted()
    print(f"serves {serving.await_serving():.1f} s after the boot")


@pytest.mark.parametrize("crash", [pytest.param(crash, id=crash.name) for crash in LIVE_RESTORE])
def test_the_engine_outlives_its_dockerd_and_its_log_is_followed_again(live_restore: Cluster, crash: Crash) -> None:
    crashes.outlive(crash, live_restore)


@pytest.fixture(scope="module")
def slow(cluster: Cluster) -> Cluster:
    """Serving four requests at a time, with prefills of minutes. Defined last: the tests above need the fast model."""
    for member in cluster.members:
        slow_prefill.write(member, "tiny-cpu-pair", PIECE_SECONDS)
        member.configure(cluster.configuration().replace("tiny-cpu-pair", "slow") + PATIENT)
    cluster.stop()
    cluster.settle()
    return cluster


@pytest.mark.parametrize("crash", [pytest.param(crash, id=crash.name) for crash in CRASHES if crash.act in ACTS])
def test_no_request_is_lost_during_a_prefill_of_minutes_and_behind_a_full_batch(slow: Cluster, crash: Crash) -> None:
    crashes.renew_rank(crash, slow)
    body = {"model": "tiny", "prompt": slow_prefill.prompt(), "max_tokens": 1}
    with ThreadPoolExecutor(1) as pool:
        began = time.monotonic()
        prefill = pool.submit(slow.head.node.post, 8000, "/v1/completions", body, timeout=4 * PREFILL_SECONDS)
        time.sleep(PIECE_SECONDS)
        crashes.outlive(crash, slow)
        answer = prefill.result()
        took = time.monotonic() - began
    print(f"answered after {took:.1f} s")
    assert (answer.status, took > PREFILL_SECONDS) == (200, True), answer.body
