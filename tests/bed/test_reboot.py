"""A node that only a reboot helps reboots itself, once: on a real systemd, which decides whether it may.

The cause is an engine's process that sleeps in the kernel after SIGKILL. A freezer of version 1 holds it so, and lets
go of it once the reboot is requested, as a machine's reset does.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.bed.cgroups import hierarchies
from tests.bed.command import BedError
from tests.bed.conftest import MakeNode
from tests.bed.node import Node
from tests.bed.processes import wait_for
from tests.bed.sparkd_node import CONFIGURATION, SERVING_SECONDS, SparkdNode
from tests.bed.test_preflight import STRAY

pytestmark = pytest.mark.whole

WANTED = "[supervise]\nreboot = true\n[preflight]\nwait_seconds = 5\n[memory]\nsettle_seconds = 5\n"
NAME = "VLLM::Worker_TP"
SESSION = "/run/systemd/sessions/c7"


@pytest.fixture(scope="module")
def spark(make_node: MakeNode, package: Path) -> SparkdNode:
    made = SparkdNode(make_node("trixie", package))
    made.configure(CONFIGURATION + WANTED)
    made.node.run("systemctl", "enable", made.unit)
    made.start()
    return made


@contextlib.contextmanager
def asleep(node: Node) -> Iterator[Path]:
    """An orphaned engine that no signal ends; the file that lets go of it."""
    freezer = next(one for one in hierarchies().all if one.name == "freezer") / f"sparkd-bed-{node.bed}-{node.name}"
    freezer.mkdir(exist_ok=True)
    state = freezer / "freezer.state"
    node.write("/root/stray.py", STRAY)
    node.sh("setsid python3 /root/stray.py >/dev/null 2>&1")

    def strays() -> list[int]:
        return [pid for pid in node.group.pids() if Path(f"/proc/{pid}/comm").read_text().strip() == NAME]

    wait_for(lambda: len(strays()) == 1, 20, "the stray")
    [pid] = strays()
    (freezer / "cgroup.procs").write_text(str(pid))
    state.write_text("FROZEN")
    wait_for(lambda: state.read_text().strip() == "FROZEN", 10, "it to be frozen")
    try:
        yield state
    finally:
        held = freezer / "cgroup.procs"
        for one in held.read_text().split():
            os.kill(int(one), signal.SIGKILL)
        state.write_text("THAWED")
        wait_for(lambda: not held.read_text().split(), 20, "it to end")
        freezer.rmdir()


def boot_id(node: Node) -> str:
    return node.read("/proc/sys/kernel/random/boot_id")


def booted_since(node: Node, before: str) -> bool:
    with contextlib.suppress(BedError):  # between two boots
        return node.init is not None and boot_id(node) != before
    return False


def judged(spark: SparkdNode) -> str:
    """What the journal says of a reboot after another start."""
    cursor = spark.cursor()
    spark.node.run("systemctl", "restart", "--no-block", spark.unit)

    def lines() -> list[str]:
        return [one for one in spark.journal_since(cursor).splitlines() if one.startswith("agent.reboot.")]

    wait_for(lambda: bool(lines()), 180, "the end of a run, and whether it reboots")
    print(lines()[0])
    return lines()[0]


def stays(spark: SparkdNode) -> None:
    wait_for(lambda: spark.show("ActiveState") == "failed", 60, "the unit to end")
    assert spark.exit_status() == 17


def test_it_reboots_once_serves_again_and_leaves_the_next_to_a_person(spark: SparkdNode) -> None:
    node, before = spark.node, boot_id(spark.node)
    with asleep(node) as state:
        node.run("systemd-run", "--unit=holds", "systemd-inhibit", "--what=shutdown", "--who=apt", "sleep", "3600")
        assert "agent.reboot.refused" in (said := judged(spark)) and "inhibit" in said.lower()
        stays(spark)
        node.run("systemctl", "stop", "holds")
        node.write(SESSION, "UID=1000\nUSER=anna\nACTIVE=1\nSTATE=active\nTYPE=tty\nCLASS=user\n")
        assert "anna may be logged in: session c7" in judged(spark)
        stays(spark)
        node.run("rm", SESSION)
        assert boot_id(node) == before
        assert "agent.reboot.requested" in judged(spark)
        state.write_text("THAWED")
        wait_for(lambda: booted_since(node, before), 240, "another boot")
    node.wait_booted()
    spark.await_serving(2 * SERVING_SECONDS)
    second = boot_id(node)
    with asleep(node):
        said = judged(spark)
        assert "agent.reboot.refused" in said and "it requested a reboot" in said
        stays(spark)
    assert boot_id(node) == second
