"""The bed's fabric and its faults: what the tests of two nodes take for granted."""

import re
from collections.abc import Iterator

import pytest
from tests.bed import Bed, BedError, Node
from tests.bed.conftest import MakeNode
from tests.bed.network import FABRIC_CARD
from tests.bed.processes import wait_for

PINGS = 2000


@pytest.fixture(scope="module")
def made(make_node: MakeNode) -> tuple[Node, Node]:
    return make_node("trixie"), make_node("trixie")


@pytest.fixture
def pair(made: tuple[Node, Node]) -> Iterator[tuple[Node, Node]]:
    """Joined by one good cable."""
    yield made
    for node in made:
        node.fabric.clear()
        node.power_on()
    for node in made:
        node.wait_up()
    wait_for(lambda: all(joined(node) for node in made), 10, "the addresses")


def address(node: Node) -> str:
    """That its fabric card has; empty when none."""
    shown = node.run("ip", "-4", "-brief", "address", "show", FABRIC_CARD).stdout
    match = re.search(r" ([0-9.]+)/24", shown)
    return match[1] if match else ""


def has_carrier(node: Node) -> bool:
    return "NO-CARRIER" not in node.run("ip", "link", "show", FABRIC_CARD).stdout


def joined(node: Node) -> bool:
    return has_carrier(node) and address(node) == node.fabric_address


def severed(node: Node) -> bool:
    return not has_carrier(node) and address(node) == ""


def reaches(node: Node, far: Node) -> bool:
    return node.run("ping", "-q", "-c3", "-i0.1", "-W1", far.fabric_address, check=False).returncode == 0


def test_a_cable_is_cut_at_both_ends_and_its_addresses_go(pair: tuple[Node, Node]) -> None:
    near, far = pair
    near.fabric.cut()
    wait_for(lambda: severed(near) and severed(far), 5, "the loss to be seen")
    far.fabric.restore()
    wait_for(lambda: joined(near) and joined(far), 5, "the restored link")
    assert reaches(near, far)


def test_a_third_node_makes_of_it_a_switch(pair: tuple[Node, Node], bed: Bed) -> None:
    near, far = pair
    third = bed.node("spark8")
    try:
        near.fabric.cut()
        wait_for(lambda: severed(near), 5, "the loss to be seen")
        assert joined(far)
        near.fabric.restore()
    finally:
        bed.remove(third)


def test_a_cable_stays_cut_when_a_node_is_booted(pair: tuple[Node, Node]) -> None:
    near, far = pair
    near.fabric.cut()
    far.reboot()
    assert severed(far)
    near.fabric.restore()
    wait_for(lambda: joined(far), 10, "the address")


def test_nothing_passes_a_blackhole_and_the_carrier_stays(pair: tuple[Node, Node]) -> None:
    near, far = pair
    assert reaches(near, far)
    near.fabric.blackhole()
    assert not reaches(near, far)
    assert not reaches(far, near)
    assert joined(near)
    assert joined(far)
    near.fabric.clear()
    assert reaches(far, near)


def test_loss_is_each_way_of_the_requested_share(pair: tuple[Node, Node]) -> None:
    near, far = pair
    assert reaches(near, far)  # their cards' addresses are known from here on: only pings are counted
    far.fabric.lose(20)
    printed = near.run("ping", "-q", f"-c{PINGS}", "-i0", "-l50", "-W1", far.fabric_address, check=False).stdout
    received = re.search(r"(\d+) received", printed)
    assert received is not None, printed
    assert 0.58 < int(received[1]) / PINGS < 0.70, printed  # 0.8 there and 0.8 back


def test_what_can_t_be_lost_is_refused(pair: tuple[Node, Node]) -> None:
    with pytest.raises(BedError, match="1 to 100"):
        pair[0].fabric.lose(101)


def test_people_have_the_same_verbs(pair: tuple[Node, Node]) -> None:
    from tests.bed.__main__ import link

    near, far = pair
    link(near.fabric, ["lose", "100"])
    assert not reaches(near, far)
    link(near.fabric, ["clear"])
    assert reaches(near, far)
    with pytest.raises(BedError, match="PERCENT"):
        link(near.fabric, ["lose", "much"])
