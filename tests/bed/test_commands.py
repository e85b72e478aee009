"""Each command of a person's under each condition works, or says in one line why not."""

import json
from collections.abc import Iterator

import pytest
from tests.bed.conditions import CONDITIONS, every_command, run_command
from tests.bed.pair import CONFIGURATION as PAIR
from tests.bed.pair import KEY_FILE, new_key
from tests.bed.processes import wait_for
from tests.bed.sparkd_node import SparkdNode

pytestmark = pytest.mark.whole


@pytest.fixture(scope="module", params=["docker runs", "docker is dead", "the other node is off"])
def state(request: pytest.FixtureRequest, spark: SparkdNode) -> Iterator[str]:
    """The agent is down, save where it waits for the other node."""
    match request.param:
        case "docker is dead":
            spark.node.run("systemctl", "stop", "docker.socket", "docker.service")
        case "the other node is off":
            nodes = json.dumps([spark.node.fabric_address, "10.0.0.99"])
            spark.configure(PAIR.format(nodes=nodes, stall_seconds=20))
            spark.node.sh(f"umask 077 && cat >{KEY_FILE}", input=f"{new_key()}\n")
            spark.start_soon()
            wait_for(lambda: "awaiting-peers" in spark.status_text(), 60, "an agent that awaits the other node")
    yield str(request.param)
    spark.stop()
    spark.configure()
    spark.node.run("systemctl", "start", "docker.service")


@pytest.mark.parametrize("condition", CONDITIONS)
@pytest.mark.parametrize("name", every_command())
def test_a_command_works_or_says_why(name: str, condition: str, state: str, spark: SparkdNode) -> None:
    outcome = run_command(spark.node, name, condition)
    assert not outcome.problem(name, condition), outcome
