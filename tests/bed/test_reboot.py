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
from tests.bed.processes import command_name, wait_for
from tests.bed.sparkd_node import CONFIGURATION, SERVING_SECONDS, SparkdNode
from tests.bed.test_preflight import STRAY

from sparkd.base.lib.errors import ExitCode

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
def unkillable_engine(node: Node) -> Iterator[Path]:
    """An orphaned engine that no signal ends; the file that thaws it."""
    freezer = next((root for root in hierarchies().all if root.name == "freezer"), None)
    if freezer is None:
        raise BedError("this machine has no freezer hierarchy of version 1 mounted")
    group = freezer / f"sparkd-bed-{node.bed}-{node.name}"
    group.mkdir(exist_ok=True)
    state, members = group / "freezer.state", group / "cgroup.procs"
    node.write("/root/stray.py", STRAY)
    try:
        node.sh("setsid python3 /root/stray.py >/dev/null 2>&1")
        [pid] = wait_for(lambda: pids if len(pids := strays(node)) == 1 else [], 20, "one stray")
        members.write_text(str(pid))
        state.write_text("FROZEN")
        wait_for(lambda: state.read_text().strip() == "FROZEN", 10, "it to be frozen")
        yield state
    finally:
        for member in members.read_text().split():
            os.kill(int(member), signal.SIGKILL)
        state.write_text("THAWED")
        wait_for(lambda: not members.read_text().split(), 20, "it to end")
        group.rmdir()


def strays(node: Node) -> list[int]:
    return [pid for pid in node.group.pids() if command_name(pid) == NAME]


def boot_id(node: Node) -> str:
    return node.read("/proc/sys/kernel/random/boot_id")


def booted_since(node: Node, before: str) -> bool:
    with contextlib.suppress(BedError):  # between two boots
        return node.init is not None and boot_id(node) != before
    return False


def restart_and_read_decision(spark: SparkdNode) -> str:
    """What the journal has of a reboot after another start."""
    cursor = spark.cursor()
    spark.node.run("systemctl", "restart", "--no-block", spark.unit)

    def decisions() -> list[str]:
        return [line for line in spark.journal_since(cursor).splitlines() if line.startswith("agent.reboot.")]

    return wait_for(decisions, 180, "the end of a run, and whether it reboots")[0]


def assert_stays_down(spark: SparkdNode) -> None:
    wait_for(lambda: spark.show("ActiveState") == "failed", 60, "the unit to end")
    assert spark.exit_status() == ExitCode.NEEDS_PERSON


def test_it_reboots_once_serves_again_and_leaves_the_next_to_a_person(spark: SparkdNode) -> None:
    node, before = spark.node, boot_id(spark.node)
    with unkillable_engine(node) as state:
        node.run("systemd-run", "--unit=holds", "systemd-inhibit", "--what=shutdown", "--who=apt", "sleep", "3600")
        decision = restart_and_read_decision(spark)
        assert "agent.reboot.refused" in decision
        assert "inhibit" in decision.lower()
        assert_stays_down(spark)
        node.run("systemctl", "stop", "holds")
        node.write(SESSION, "UID=1000\nUSER=anna\nACTIVE=1\nSTATE=active\nTYPE=tty\nCLASS=user\n")
        assert "anna may be logged in: session c7" in restart_and_read_decision(spark)
        assert_stays_down(spark)
        node.run("rm", SESSION)
        assert boot_id(node) == before
        assert "agent.reboot.requested" in restart_and_read_decision(spark)
        state.write_text("THAWED")
        wait_for(lambda: booted_since(node, before), 240, "another boot")
    node.wait_booted()
    spark.await_serving(2 * SERVING_SECONDS)
    second = boot_id(node)
    with unkillable_engine(node):
        decision = restart_and_read_decision(spark)
        assert "agent.reboot.refused" in decision
        assert "it requested a reboot" in decision
        assert_stays_down(spark)
    assert boot_id(node) == second
