"""The fabric as a real kernel shows it: a bond of two cables, RDMA on it, and what is said when they are cut."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.bed.processes import wait_for
from tests.bed.qemu.pair import BOND, MTU, UNIT, Pair

pytestmark = [pytest.mark.whole, pytest.mark.timeout(1800)]

HCA = "rxe0"
INDEX = "NCCL_IB_GID_INDEX"


@pytest.fixture(scope="module")
def rdma(pair: Pair) -> Iterator[Pair]:
    """RDMA made in software on the head's bond."""
    pair.head.run("rdma", "link", "add", HCA, "type", "rxe", "netdev", BOND)
    yield pair
    pair.head.run("rdma", "link", "delete", HCA)


@pytest.fixture
def bonded(rdma: Pair) -> Iterator[Pair]:
    wait_for(rdma.pings, 60, "the bonds to meet", pause=1)
    yield rdma
    for port in (0, 1):
        rdma.cable(port, True)


def test_a_bond_carries_the_address_and_whole_frames_and_rdma(bonded: Pair) -> None:
    said = bonded.preflight()
    assert (said["fabric-address"].level, said["fabric-address"].reason) == ("ok", "10.0.0.1 on bond0, up")
    link = said["fabric-link"]
    assert (link.level, link.reason) == ("ok", f"bond0 up, MTU {MTU}, frames of {MTU} arrive at 1 of 1")
    assert {one["name"]: one["speed_mbps"] for one in link.facts["links"]}["eth0"] == 200_000
    assert (said["rdma"].level, said["rdma"].reason) == ("ok", f"{HCA} ({BOND}): ACTIVE")
    assert said["gid"].level == "ok"


def test_one_leg_cut_is_named_and_the_other_still_carries_whole_frames(bonded: Pair) -> None:
    bonded.cable(0, False)
    wait_for(bonded.pings, 60, "the other leg to carry", pause=1)
    said = bonded.preflight()
    link = said["fabric-link"]
    assert (link.level, link.reason) == ("warn", "eth0 has no carrier (down)")
    assert [one["fits"] for one in link.facts["paths"]] == [True]
    assert said["fabric-address"].level == "ok"
    assert said["rdma"].reason == f"{HCA} ({BOND}): ACTIVE"


def test_both_legs_cut_leave_no_carrier_and_rdma_down_and_nothing_is_waited_out(bonded: Pair) -> None:
    for port in (0, 1):
        bonded.cable(port, False)
    said = bonded.preflight()
    link = said["fabric-link"]
    assert link.level == "warn"
    for name in (BOND, "eth0", "eth1"):
        assert f"{name} has no carrier (down)" in link.reason
    assert link.facts["paths"] == [], "no peer is probed over an interface without carrier"
    assert said["fabric-address"].level == "ok", "the address stays: the agent awaits the other node"
    rdma = said["rdma"]
    assert (rdma.level, rdma.reason) == ("warn", f"{HCA} ({BOND}): port 1 is DOWN; {BOND} has no carrier")


def test_a_bond_that_takes_no_large_frames_is_warned_of_and_no_peer_is_probed_with_them(bonded: Pair) -> None:
    bonded.head.run("ip", "link", "set", BOND, "mtu", "1500")
    try:
        link = bonded.preflight()["fabric-link"]
    finally:
        bonded.head.run("ip", "link", "set", BOND, "mtu", str(MTU))
    assert (link.level, link.reason) == ("warn", f"{BOND} has an MTU of 1500, fabric.mtu is {MTU}")
    assert link.facts["paths"] == []


def place(pair: Pair, part: str) -> int | None:
    """The index of the GID with this part, as the kernel has it: a carrier that comes and goes moves it."""
    listed = pair.head.sh(f"cd /sys/class/infiniband/{HCA}/ports/1/gids && grep -v '^[0:]*$' *").stdout.split()
    found = [int(line.partition(":")[0]) for line in listed if part in line]
    return found[0] if found else None


HEADS, OTHER = ":ffff:0a00:0001", ":fd00:"
UNUSED = 200
"""An index that no address comes to; the table has 1024."""


def test_a_pinned_gid_index_is_right_or_blocks_and_the_right_one_is_named(bonded: Pair) -> None:
    right = place(bonded, HEADS)
    good = bonded.preflight(f'{INDEX} = "{right}"')["gid"]
    assert (good.level, good.reason) == ("ok", f"index {right} is right on {HCA}")
    bad = bonded.preflight(f'{INDEX} = "{UNUSED}"')["gid"]
    assert bad.level == "block"
    assert bad.reason == f"{INDEX}={UNUSED}: on {HCA} that is unused; the right index is {right}"


def test_an_index_that_moved_when_an_address_came_and_went_blocks(bonded: Pair) -> None:
    head, before = bonded.head, place(bonded, HEADS)
    head.sh(f"ip address del 10.0.0.1/24 dev {BOND} && ip address add fd00::1/64 dev {BOND}")
    wait_for(lambda: place(bonded, OTHER) == before, 60, "another address to take its place", pause=1)
    bonded.give_address(head)
    try:
        wait_for(lambda: place(bonded, HEADS) is not None, 60, "the address to have a place again", pause=1)
        now = place(bonded, HEADS)
        moved = bonded.preflight(f'{INDEX} = "{before}"')["gid"]
    finally:
        head.sh(f"ip address del fd00::1/64 dev {BOND}")
    assert moved.level == "block"
    assert moved.reason == f"{INDEX}={before}: on {HCA} that is RoCE v2 fd00::1; the right index is {now}"


def test_the_agent_waits_for_an_address_that_comes_late_to_the_bond(bonded: Pair) -> None:
    head = bonded.head
    head.run("ip", "address", "flush", "dev", BOND)
    status = ("systemctl", "show", "--value", "--property", "StatusText", UNIT)
    report = ("cat", "/run/sparkd/report.json")
    head.run("systemctl", "start", "--no-block", UNIT)
    try:
        wait_for(lambda: "10.0.0.1" in head.run(*status).stdout, 240, "the agent to wait for its address", pause=1)
        assert head.run("systemctl", "is-active", UNIT, check=False).stdout.strip() == "activating"
        bonded.give_address(head)
        found = "10.0.0.1 on bond0, up"
        wait_for(lambda: found in head.run(*report, check=False).stdout, 300, "it to find the bond", pause=2)
    finally:
        head.run("systemctl", "stop", UNIT, timeout=240)
