"""A flag that breaks the start: the journal ends with its name, and a rollback serves again, until somebody edits."""

import json
import re
from functools import partial
from pathlib import Path

import pytest
from tests.bed.conftest import MakeNode
from tests.bed.pair import Cluster
from tests.bed.processes import wait_for
from tests.bed.sparkd_node import CONFIGURATION, HEAD, SERVING_SECONDS, SparkdNode

KNOWN_GOOD, SWITCH = "/var/lib/sparkd/known-good.json", "/var/lib/sparkd/switch.json"
IMAGE = "sparkd-test/vllm-cpu:0.32.0"
AT_ONCE = "[supervise]\nproven_seconds = 2\n"
REFUSED = "[engine.args]\nenable-sleep-mode = true\n"
"""The parser takes it, and so does sparkd; on a CPU the engine does not."""
EVENT = re.compile(r"[a-z_]+\.[a-z_]+\.[a-z_]+ |engine\| ")
FAILING_SECONDS = 120.0


@pytest.fixture(scope="module")
def spark(make_node: MakeNode, package: Path) -> SparkdNode:
    return SparkdNode(make_node("trixie", package))


def image_id(spark: SparkdNode) -> str:
    return spark.node.run("docker", "image", "inspect", "--format", "{{.Id}}", IMAGE).stdout.strip()


def kept(spark: SparkdNode) -> bool:
    return "known_good.plan.saved" in spark.node.journal(spark.unit)


def move_tag(spark: SparkdNode) -> None:
    """The image's name refers to another image, as after a pull."""
    made = spark.node.run("docker", "create", IMAGE, "true").stdout.strip()
    spark.node.run("docker", "commit", "--change", "ENV MOVED=1", made, IMAGE, timeout=120)
    spark.node.run("docker", "rm", made)


def last_lines(spark: SparkdNode, cursor: str) -> list[str]:
    """Of the first life since then: from its failure to the next life, without those of systemd."""
    after = spark.journal_since(cursor).partition("agent.run.failed ")[2]
    life = after.partition("agent.phase.changed phase=preflight")[0]
    return [line for line in life.splitlines()[1:] if EVENT.match(line)]


def test_a_flag_that_breaks_the_start_is_named_and_a_rollback_serves_again(spark: SparkdNode) -> None:
    node = spark.node
    assert node.run("sparkd", "diff").stdout.startswith("no start is known good on this node yet")

    spark.configure(CONFIGURATION + AT_ONCE)
    spark.start()
    wait_for(lambda: kept(spark), 30, "the plan to prove itself")
    assert "nothing that sparkd knows of differs" in node.run("sparkd", "diff").stdout

    spark.configure(CONFIGURATION + REFUSED + AT_ONCE)
    assert "config" not in node.run("sparkd", "config", "check").stderr
    cursor = spark.cursor()
    node.run("systemctl", "restart", "--no-block", HEAD)
    wait_for(lambda: "known_good." in "".join(last_lines(spark, cursor)), FAILING_SECONDS, "the start to fail")
    assert "code=13" in spark.ends_since(cursor)[0]
    (*_, last) = last_lines(spark, cursor)
    assert last.startswith('known_good.value.changed name=args.enable-sleep-mode then="not set" now=true'), last
    assert "sparkd rollback" in last
    shown = node.run("sparkd", "diff").stdout.splitlines()
    assert [line.split() for line in shown[1:]] == [["then", "now"], ["args.enable-sleep-mode", "-", "true"]], shown

    good = image_id(spark)
    move_tag(spark)
    try:
        output = node.run("sparkd", "rollback").stdout
        assert "is in force from the next start on, until the configuration changes" in output
        assert output.splitlines()[-1] == "next: sudo systemctl restart sparkd-head"
        assert "brings back" not in output, output
        cursor = spark.cursor()
        node.run("systemctl", "restart", HEAD, timeout=SERVING_SECONDS)
        assert spark.serves()
        assert node.run("docker", "inspect", "--format", "{{.Image}}", "sparkd-rank0").stdout.strip() == good
        assert "rollback.plan.applied" in spark.journal_since(cursor)
        assert re.search(r"^warn +rollback: instead of what is configured", node.run("sparkd", "status").stdout, re.M)
        assert node.run("sparkd", "plan").stdout.startswith("rollback ")
    finally:
        node.run("docker", "tag", good, IMAGE)

    spark.configure(CONFIGURATION + "[engine.args]\nseed = 7\n" + AT_ONCE)
    assert json.loads(node.run("sparkd", "plan", "--json").stdout)["argv"][-2:] == ["--seed", "7"]
    cursor = spark.cursor()
    node.run("systemctl", "restart", "--no-block", HEAD)
    wait_for(lambda: "rollback.plan.removed" in spark.journal_since(cursor), 60, "the rollback to end")
    assert node.run("test", "-e", SWITCH, check=False).returncode == 1
    assert len(json.loads(node.read(KNOWN_GOOD))["known_good"]) == 1
    spark.stop()


@pytest.fixture(scope="module")
def pair(make_node: MakeNode, package: Path) -> Cluster:
    made = Cluster.of([make_node("trixie", package) for _ in range(2)])
    made.configure()
    return made


@pytest.mark.whole
def test_a_pair_is_rolled_back_node_by_node_and_waits_for_the_one_that_is_not(pair: Cluster) -> None:
    good = f"{pair.configuration()}proven_seconds = 2\n"  # it ends in [supervise]
    for member in pair.members:
        member.configure(good)
    pair.start()
    pair.await_serving()
    for member in pair.members:
        wait_for(partial(kept, member), 60, f"the plan to prove itself on {member.node.name}")

    for member in pair.members:
        member.configure(good + REFUSED)
    head, worker = pair.members
    pair.stop()
    cursors = [member.cursor() for member in pair.members]
    pair.start()

    def failures() -> list[str]:
        """By the node whose rank ended first; the other one reports that."""
        journals = (member.journal_since(cursor) for member, cursor in zip(pair.members, cursors, strict=True))
        return [line for text in journals for line in text.splitlines() if line.startswith("known_good.")]

    wait_for(lambda: bool(failures()), FAILING_SECONDS, "the start to fail")
    assert all("name=args.enable-sleep-mode" in line for line in failures()), failures()

    lines = head.node.run("sparkd", "rollback").stdout.splitlines()
    (on_the_other,) = (line.partition("sudo ")[2] for line in lines if line.startswith("next: on each other node"))
    cursor = head.cursor()
    head.node.run("systemctl", "restart", "--no-block", HEAD)
    differs = re.compile(r"^cluster\.plan\.mismatched .*args\.enable-sleep-mode", re.MULTILINE)
    wait_for(lambda: bool(differs.search(head.journal_since(cursor))), 120, "the worker's other plan to be reported")
    worker.node.sh(on_the_other)
    worker.node.run("systemctl", "restart", "--no-block", worker.unit)
    pair.await_serving()
    pair.stop()
