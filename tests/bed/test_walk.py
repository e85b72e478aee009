"""README's way from fresh nodes to a served model, by its commands as they stand there."""

import json
import time
from pathlib import Path

import pytest
from tests.bed import readme
from tests.bed.conftest import MakeNode
from tests.bed.readme import Walk

KEY, OWN = "/etc/sparkd/cluster.key", "/etc/sparkd/conf.d/10-init.toml"
OVER_PEER_TIMEOUT_SECONDS = 25
"""A node that the others take no more signatures of is lost after 20 s."""


def check(walk: Walk) -> None:
    """Each command did what README says, and the nodes serve."""
    print(walk.table)
    assert walk.failed == []
    head, *workers = walk.nodes
    request = {"model": "deepseek-v4-flash", "prompt": "Hello", "max_tokens": 16}
    answer = head.post(8000, "/v1/completions", request)
    assert (answer.status, json.loads(answer.body)["usage"]["completion_tokens"]) == (200, 16)
    shown = head.run("sparkd", "status").stdout
    for node in walk.nodes:
        assert node.fabric_address in shown
        assert node.sh(f"stat -c '%a %U' {KEY}").stdout == "600 root\n"
        assert node.read(KEY) == head.read(KEY)
    joined = head.sh("journalctl --no-pager -o cat -t sparkd").stdout
    assert [node.fabric_address in joined for node in workers] == [True] * len(workers)
    assert walk.code not in joined
    for node in workers:
        assert node.read(OWN).count("follow_head = true") == 1
        assert node.sh("ls /etc/sparkd/recipes").stdout == "", "the recipe comes from the head"


@pytest.fixture(scope="module")
def two(make_node: MakeNode, package: Path) -> Walk:
    return readme.walk_several([make_node("trixie") for _ in range(2)], package)


@pytest.mark.timeout(600)
def test_two_fresh_nodes_serve_by_the_commands_of_the_readme(two: Walk) -> None:
    check(two)
    head, other = two.nodes
    before = other.read(KEY), other.read(OWN)
    again = head.sh(f"sparkd init --yes --invite --ssh root@{other.fabric_address}").stdout
    assert f"joined    spark2 ({other.fabric_address}), sparkd " in again
    assert ", again\n" in again
    assert (other.read(KEY), other.read(OWN)) == before
    assert "spark2 (worker): " in other.run("sparkd", "preflight", "--dry-run").stdout


@pytest.mark.whole
def test_the_key_is_changed_by_a_new_invitation_and_the_engine_serves_all_the_time(two: Walk) -> None:
    head, other = two.nodes
    launched, old = head.sh("docker ps -q").stdout, head.read(KEY).split()[-1]
    head.run("sparkd", "init", "--new-cluster-key", "--rotate")
    head.sh(f"sparkd init --yes --invite --ssh root@{other.fabric_address}")
    assert other.read(KEY) == head.read(KEY)
    for node in (head, other):
        node.sh(f"sed -i '$d' {KEY}")
        assert old not in node.read(KEY)
    time.sleep(OVER_PEER_TIMEOUT_SECONDS)
    assert head.sh("docker ps -q").stdout == launched
    assert "serving" in head.run("sparkd", "status").stdout


@pytest.mark.whole
@pytest.mark.timeout(1800)
def test_four_fresh_nodes_serve_by_the_commands_of_the_readme(make_node: MakeNode, package: Path) -> None:
    check(readme.walk_several([make_node("trixie") for _ in range(4)], package))
