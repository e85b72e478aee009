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
from tests.bed.strays import STRAY, stray_pids

from sparkd.base.lib.errors import ExitCode

pytestmark = pytest.mark.whole

REBOOT_ALLOWED = "[supervise]\nreboot = true\n[preflight]\nwait_seconds = 5\n[memory]\nsettle_seconds = 5\n"
SESSION = "/run/systemd/sessions/c7"
"""The file by which logind says that somebody is logged in."""


@pytest.fixture(scope="module")
def spark(make_node: MakeNode, package: Path) -> SparkdNode:
    spark = SparkdNode(make_node("trixie", package))
    spark.configure(CONFIGURATION + REBOOT_ALLOWED)
    spark.node.run("systemctl", "enable", spark.unit)
    spark.start()
    return spark


@contextlib.contextmanager
def unkillable_engine(node: Node) -> Iterator[Path]:
    """An orphaned engine that no signal ends; the file that thaws it."""
    freezer = next((root for root in hierarchies().all if root.name == "freezer"), None)
    if freezer is None:
        raise BedError("this machine has no freezer hierarchy of version 1 mounted")
    group = freezer / f"sparkd-bed-{node.bed}-{node.name}"
    group.mkdir(exist_ok=True)
    freezer_state, members = group / "freezer.state", group / "cgroup.procs"
    node.write("/root/stray.py", STRAY)

    def find_single_stray() -> list[int]:
        pids = stray_pids(node)
        return pids if len(pids) == 1 else []

    try:
        node.sh("setsid python3 /root/stray.py >/dev/null 2>&1")
        [pid] = wait_for(find_single_stray, 20, "one stray")
        members.write_text(str(pid))
        freezer_state.write_text("FROZEN")
        wait_for(lambda: freezer_state.read_text().strip() == "FROZEN", 10, "it to be frozen")
        yield freezer_state
    finally:
        for member in members.read_text().split():
            os.kill(int(member), signal.SIGKILL)
        freezer_state.write_text("THAWED")
        wait_for(lambda: not members.read_text().split(), 20, "it to end")
        group.rmdir()


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


def assert_refused(spark: SparkdNode, reason: str) -> None:
    """After another start no reboot is requested, for this reason, and the unit ends for a person to look at."""
    decision = restart_and_read_decision(spark)
    assert "agent.reboot.refused" in decision
    assert reason in decision.lower()
    wait_for(lambda: spark.show("ActiveState") == "failed", 60, "the unit to end")
    assert spark.exit_status() == ExitCode.NEEDS_PERSON


def test_it_reboots_once_serves_again_and_leaves_the_next_to_a_person(spark: SparkdNode) -> None:
    node = spark.node
    first_boot = boot_id(node)
    with unkillable_engine(node) as freezer_state:
        # An installation by apt holds up a shutdown.
        node.run("systemd-run", "--unit=holds", "systemd-inhibit", "--what=shutdown", "--who=apt", "sleep", "3600")
        assert_refused(spark, "inhibit")
        node.run("systemctl", "stop", "holds")

        # A person who is logged in would lose their work.
        node.write(SESSION, "UID=1000\nUSER=anna\nACTIVE=1\nSTATE=active\nTYPE=tty\nCLASS=user\n")
        assert_refused(spark, "anna may be logged in: session c7")
        node.run("rm", SESSION)
        assert boot_id(node) == first_boot

        # Nothing objects. A machine's reset would end the stray: here the freezer lets go of it.
        assert "agent.reboot.requested" in restart_and_read_decision(spark)
        freezer_state.write_text("THAWED")
        wait_for(lambda: booted_since(node, first_boot), 240, "another boot")
    node.wait_booted()
    spark.await_serving(2 * SERVING_SECONDS)
    second_boot = boot_id(node)

    # The same fault soon after its reboot: another one would not help either.
    with unkillable_engine(node):
        assert_refused(spark, "it requested a reboot")
    assert boot_id(node) == second_boot
