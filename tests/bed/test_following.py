"""One configuration: a worker that has its nodes and `follow_head` alone runs what its head runs, within its bounds."""

import json
from functools import partial
from pathlib import Path

import pytest
from tests.bed.conftest import MakeNode
from tests.bed.pair import Cluster
from tests.bed.processes import wait_for
from tests.bed.sparkd_node import SparkdNode

pytestmark = pytest.mark.whole
KEPT, FILES = "/var/lib/sparkd/head-config.json", "/var/lib/sparkd/head-files"
SCRIPT = """\
echo "the head's own script" >&2
exec "$@"
"""
PROVEN = "proven_seconds = 2\n"  # the configuration ends in [supervise]
CHANGE_SECONDS = 60.0


def restart_head(cluster: Cluster, text: str) -> None:
    """With this configuration; nothing is done on the worker."""
    cluster.head.configure(text)
    cluster.head.node.run("systemctl", "restart", "--no-block", cluster.head.unit)


def message(member: SparkdNode) -> str:
    report = member.report()
    return report.message if report else ""


def plan(member: SparkdNode) -> dict[str, object]:
    found: dict[str, object] = json.loads(member.node.run("sparkd", "plan", "--json").stdout)
    return found


def serves(cluster: Cluster) -> bool:
    """In one plan, that of the head's configuration."""
    return cluster.serves() and plan(cluster.worker)["digest"] == plan(cluster.head)["digest"]


@pytest.fixture(scope="module")
def cluster(make_node: MakeNode, package: Path) -> Cluster:
    """The worker has never had another configuration."""
    made = Cluster.of([make_node("trixie", package) for _ in range(2)])
    made.configure()
    made.worker.configure(made.following())
    made.head.configure(made.configuration() + PROVEN)
    return made


def test_a_worker_with_its_nodes_alone_waits_for_its_head_and_then_serves(cluster: Cluster) -> None:
    cluster.start(cluster.worker)
    wait_for(lambda: "no configuration of the head" in message(cluster.worker), 30, "the worker to say what it awaits")
    assert cluster.worker.phase() == "awaiting-peers"
    assert cluster.worker.active(), "`systemctl start` has returned"
    cluster.start(cluster.head)
    cluster.await_serving()
    assert plan(cluster.worker)["recipe"] == "tiny-cpu-pair"
    origins = json.loads(cluster.worker.node.run("sparkd", "config", "show", "--json").stdout)
    head = f"head {cluster.head.node.fabric_address}"
    assert origins["engine"]["env"]["origin"] == {"OMP_NUM_THREADS": head, "NCCL_IB_HCA": head}
    assert origins["engine"]["models_dir"]["origin"] == "default"
    assert head.removeprefix("head ") in cluster.worker.node.run("sparkd", "config", "check").stdout


def test_a_change_on_the_head_reaches_the_worker_by_a_restart_of_the_head(cluster: Cluster) -> None:
    cluster.head.node.write("/etc/sparkd/run.sh", SCRIPT)
    text = cluster.configuration().replace("[engine]\n", '[engine]\nscript = "/etc/sparkd/run.sh"\n') + PROVEN
    restart_head(cluster, text)
    wait_for(lambda: serves(cluster), 240, "the pair to serve with the head's script")
    assert "the head's own script" in cluster.worker.node.journal(cluster.worker.unit)
    assert cluster.worker.node.run("stat", "-c", "%a %U", FILES).stdout.split() == ["700", "root"]
    restart_head(cluster, cluster.configuration() + PROVEN)
    wait_for(lambda: serves(cluster), 240, "the pair to serve as before")
    assert cluster.worker.node.run("ls", FILES).stdout == ""


def test_a_rollback_on_the_head_reaches_the_worker(cluster: Cluster) -> None:
    good = plan(cluster.head)["digest"]
    wait_for(lambda: "known_good.plan.saved" in cluster.head.node.journal(cluster.head.unit), 60, "the plan to prove")
    restart_head(cluster, cluster.configuration() + PROVEN + "[engine.args]\nseed = 7\n")
    wait_for(lambda: serves(cluster) and plan(cluster.worker)["digest"] != good, 240, "the pair to serve the new plan")
    refused = cluster.worker.node.run("sparkd", "rollback", check=False)
    assert refused.returncode == 2 and "its head" in refused.stderr
    cluster.head.node.run("sparkd", "rollback", str(good)[:12])
    cluster.head.node.run("systemctl", "restart", "--no-block", cluster.head.unit)
    wait_for(lambda: serves(cluster) and plan(cluster.worker)["digest"] == good, 240, "the pair to serve the good plan")
    cluster.head.node.run("sparkd", "rollback", "--end")
    restart_head(cluster, cluster.configuration() + PROVEN)
    wait_for(lambda: serves(cluster), 240, "the pair to serve as configured")


def test_what_the_worker_does_not_allow_blocks_it_visibly_until_that_is_changed(cluster: Cluster) -> None:
    before = cluster.worker.node.read(KEPT)
    recipe = "schema: 1\nname: mine\nextends: tiny-cpu-pair\ncontainer:\n  volumes: ['/etc:/etc-of-node:ro']\n"
    cluster.head.node.write("/etc/sparkd/recipes/mine.yaml", recipe)
    restart_head(cluster, cluster.configuration().replace("tiny-cpu-pair", "mine") + PROVEN)
    refused = "wants /etc to read: cluster.allow.mounts permits none"
    wait_for(lambda: refused in message(cluster.worker), CHANGE_SECONDS, "the worker to refuse")
    assert cluster.worker.phase() == "blocked"
    shown = partial(cluster.head.node.run, "sparkd", "status", check=False)
    wait_for(lambda: refused in shown().stdout, 20, "the head's status to say why")
    pid = cluster.worker.main_pid()
    assert cluster.worker.node.read(KEPT) == before
    wait_for(lambda: cluster.head.phase() == "awaiting-peers", CHANGE_SECONDS, "the head to wait")
    assert cluster.worker.main_pid() == pid, "it waits in its process"
    cluster.worker.configure(cluster.following('[cluster.allow]\nmounts = ["/etc"]\n'))
    wait_for(lambda: serves(cluster), 240, "the pair to serve with the mount")


def test_without_its_head_a_worker_starts_with_what_it_has_kept_unless_it_is_too_much(cluster: Cluster) -> None:
    cluster.stop()
    cluster.start(cluster.worker)
    wait_for(lambda: "waiting for" in message(cluster.worker), CHANGE_SECONDS, "the worker to stand by")
    assert "cluster.config.followed" in cluster.worker.node.journal(cluster.worker.unit)
    cluster.worker.stop()
    planted = json.loads(cluster.worker.node.read(KEPT))
    planted["recipe"].setdefault("container", {})["privileged"] = True
    cluster.worker.node.write(KEPT, json.dumps(planted))
    cluster.start(cluster.worker)
    wait_for(lambda: "a privileged container" in message(cluster.worker), CHANGE_SECONDS, "the worker to refuse")
    assert cluster.worker.phase() == "blocked"
    assert cluster.worker.containers() == []
    cluster.start(cluster.head)
    wait_for(partial(serves, cluster), 240, "the head's own document to replace the planted one")
