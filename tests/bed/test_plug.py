"""A machine that hangs has its power cut by its neighbour's program, and serves again; a cable cuts nobody's.

A machine whose kernel is dead is one here whose programs are frozen, and whose two cables pass nothing while they keep
their carrier. The plug is this test: it cuts the power once the program has named the node.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.bed.conftest import MakeNode
from tests.bed.network import management_port
from tests.bed.node import Node
from tests.bed.pair import Cluster
from tests.bed.processes import wait_for
from tests.bed.sparkd_node import SERVING_SECONDS, SparkdNode

pytestmark = [pytest.mark.whole, pytest.mark.timeout(1800)]

PLUG = "/usr/local/sbin/plug"
PRESSED = "/run/pressed"
SCRIPT = f"#!/bin/sh\necho $SILENT_NODE >> {PRESSED}\n"
AFTER_MINUTES = 5
WANTED = f'power_command = ["{PLUG}"]\npower_after_minutes = {AFTER_MINUTES}\n'
LATER_SECONDS = 60.0
"""After those minutes: looks every ten seconds, and a message that may take 40 s."""


@pytest.fixture(scope="module")
def cluster(make_node: MakeNode, package: Path) -> Iterator[Cluster]:
    made = Cluster.of([make_node("trixie", package) for _ in range(2)])
    made.configure(WANTED)
    for member in made.members:
        member.node.write(PLUG, SCRIPT)
        member.node.run("chmod", "0755", PLUG)
    made.start()
    made.await_serving(2 * SERVING_SECONDS)
    yield made


def pressed(node: Node) -> str:
    return node.sh(f"cat {PRESSED} 2>/dev/null || true").stdout.strip()


def power_lines(member: SparkdNode) -> list[str]:
    return [line for line in member.node.journal(member.unit).splitlines() if line.startswith("power.")]


def test_a_silent_cable_cuts_nobodys_power_and_a_machine_that_hangs_is_cut_once(cluster: Cluster) -> None:
    head, worker = cluster.head, cluster.worker
    time.sleep(30)  # both have seen the other one answer on both networks
    worker.node.fabric.blackhole()
    time.sleep(AFTER_MINUTES * 60 + LATER_SECONDS)
    assert [pressed(member.node) for member in cluster.members] == ["", ""]
    worker.node.space.run("ip", "link", "set", management_port(worker.node.addresses.index), "nomaster")
    worker.node.freeze()
    began = time.monotonic()
    try:
        wait_for(lambda: pressed(head.node), AFTER_MINUTES * 60 + LATER_SECONDS, "the program to be run")
    finally:
        print("\n".join(power_lines(head)))
    assert time.monotonic() - began >= AFTER_MINUTES * 60 - 10
    assert pressed(head.node) == worker.node.fabric_address
    worker.node.powercut(lose_unsynced=True, stay_off=True)
    worker.node.fabric.clear()
    worker.node.power_on()
    worker.node.wait_booted()
    print(f"serves {cluster.await_serving(2 * SERVING_SECONDS):.0f} s after its boot")
    assert sum("power.command.started" in line for line in power_lines(head)) == 1
    assert pressed(worker.node) == ""
