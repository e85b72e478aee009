"""The readahead of the model's disk, lowered for a load by the unit's agent, comes back whatever ends the load.

The node's disk is a loop device of the bed's own, and the only one that is changed. In these nodes
ProtectKernelTunables= leaves /sys as it was (seen with systemd 257): that the drop-in opens what the unit closes is not
shown here.
"""

import signal
from pathlib import Path

import pytest
from tests.bed.conftest import MakeNode
from tests.bed.processes import wait_for
from tests.bed.sparkd_node import CONFIGURATION, SparkdNode
from tests.bed.victims import container_init, sparkd

from sparkd.base.lib.errors import ExitCode

LOWERED_KIB = 16
REMEMBERED = "/run/sparkd/readahead.json"


def setting_path(spark: SparkdNode) -> str:
    """The file with the readahead of the disk that the models are on."""
    number = spark.node.sh("stat --format %Hd:%Ld /srv/models").stdout.strip()
    return f"/sys/devices/virtual/bdi/{number}/read_ahead_kb"


def readahead(spark: SparkdNode) -> int:
    return int(spark.node.read(setting_path(spark)))


def await_lowered(spark: SparkdNode) -> None:
    """Wait until the agent that runs now has lowered it for a container that runs."""
    wait_for(lambda: bool(spark.rank()) and readahead(spark) == LOWERED_KIB, 60, "the load to begin")


def changes(spark: SparkdNode, cursor: str) -> list[int]:
    """The values in KiB to which it was set since the cursor, in order."""
    lines = spark.journal_since(cursor).splitlines()
    return [int(line.rpartition(" kib=")[2]) for line in lines if line.startswith("page_cache.readahead.changed ")]


@pytest.fixture(scope="module")
def spark(make_node: MakeNode, package: Path) -> SparkdNode:
    """Configured to lower it. What a container sees of /sys is read-only, a machine does not."""
    made = SparkdNode(make_node("trixie", package))
    made.node.run("mount", "-o", "remount,rw", "/sys/devices")
    made.configure(f"{CONFIGURATION}load_readahead_kib = {LOWERED_KIB}\n")
    return made


@pytest.mark.whole
def test_it_is_given_back_after_a_killed_agent_a_failed_load_and_a_good_one(spark: SparkdNode) -> None:
    before, cursor = readahead(spark), spark.cursor()
    assert before > LOWERED_KIB
    spark.start_soon()
    await_lowered(spark)

    old = sparkd(spark)
    spark.node.kill(old, signal.SIGKILL)
    wait_for(lambda: spark.main_pid() not in (0, old), 60, "systemd to start sparkd again")
    wait_for(lambda: changes(spark, cursor) == [LOWERED_KIB, before, LOWERED_KIB], 60, "the next agent to start over")

    await_lowered(spark)
    old = sparkd(spark)
    spark.node.kill(container_init(spark), signal.SIGKILL)
    wait_for(lambda: spark.main_pid() not in (0, old), 60, "systemd to start sparkd again")
    # The next agent may have lowered it again meanwhile.
    assert changes(spark, cursor)[:4] == [LOWERED_KIB, before] * 2
    (failed,) = spark.ends_since(cursor)
    assert int(failed.removeprefix("code=").split()[0]) in (ExitCode.LAUNCH_FAILED, ExitCode.ENGINE_ENDED), failed

    spark.await_serving()
    assert readahead(spark) == before
    assert changes(spark, cursor) == [LOWERED_KIB, before] * 3
    assert spark.node.sh(f"test ! -e {REMEMBERED}", check=False).returncode == 0
    spark.stop()
