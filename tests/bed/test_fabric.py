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
    found = re.search(r" ([0-9.]+)/24", shown)
    return found[1] if found else ""


def has_carrier(node: Node) -> bool:
    return "NO-CARRIER" not in node.run("ip", "link", "show", FABRIC_CARD).stdout


def joined(node: Node) -> bool:
    return has_carrier(node) and address(node) == node.fabric_address


def severed(node: Node) -> bool:
    return not has_carrier(node) and address(node) == ""


def reaches(node: Node, other: Node) -> bool:
    return node.run("ping", "-q", "-c3", "-i0.1", "-W1", other.fabric_address, check=False).returncode == 0


def test_a_cable_is_cut_at_both_ends_and_its_addresses_go(pair: tuple[Node, Node]) -> None:
    one, other = pair
    one.fabric.cut()
    wait_for(lambda: severed(one) and severed(other), 5, "the loss to be seen")
    other.fabric.restore()
    wait_for(lambda: joined(one) and joined(other), 5, "the restored link")
    assert reaches(one, other)


def test_a_third_node_makes_of_it_a_switch(pair: tuple[Node, Node], bed: Bed) -> None:
    one, other = pair
    third = bed.node("spark8")
    try:
        one.fabric.cut()
        wait_for(lambda: severed(one), 5, "the loss to be seen")
        assert joined(other)
        one.fabric.restore()
    finally:
        bed.remove(third)


def test_a_cable_stays_cut_when_a_node_is_booted(pair: tuple[Node, Node]) -> None:
    one, other = pair
    one.fabric.cut()
    other.reboot()
    assert severed(other)
    one.fabric.restore()
    wait_for(lambda: joined(other), 10, "the address")


def test_nothing_passes_a_blackhole_and_the_carrier_stays(pair: tuple[Node, Node]) -> None:
    one, other = pair
    assert reaches(one, other)
    one.fabric.blackhole()
    assert not reaches(one, other)
    assert not reaches(other, one)
    assert joined(one)
    assert joined(other)
    one.fabric.clear()
    assert reaches(other, one)


def test_loss_is_each_way_of_the_requested_share(pair: tuple[Node, Node]) -> None:
    one, other = pair
    assert reaches(one, other)  # their cards' addresses are known from here on: only pings are counted
    other.fabric.lose(20)
    said = one.run("ping", "-q", f"-c{PINGS}", "-i0.002", "-W1", other.fabric_address, check=False).stdout
    received = re.search(r"(\d+) received", said)
    assert received is not None, said
    assert 0.58 < int(received[1]) / PINGS < 0.70, said  # 0.8 there and 0.8 back


def test_what_can_t_be_lost_is_refused(pair: tuple[Node, Node]) -> None:
    with pytest.raises(BedError, match="1 to 100"):
        pair[0].fabric.lose(101)


def test_people_have_the_same_verbs(pair: tuple[Node, Node]) -> None:
    from tests.bed.__main__ import link

    one, other = pair
    link(one.fabric, ["lose", "100"])
    assert not reaches(one, other)
    link(one.fabric, ["clear"])
    assert reaches(one, other)
    with pytest.raises(BedError, match="PERCENT"):
        link(one.fabric, ["lose", "much"])
