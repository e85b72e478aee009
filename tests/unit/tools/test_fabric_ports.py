"""Which ports may be a fabric, from /sys as a DGX Spark and other machines have it."""

import pytest
from tests.machines.areas import fabric as spark
from tests.tree import Tree

from sparkd.base.host.files import Files
from sparkd.tools.node.fabric_ports import read_ports


@pytest.fixture
def node(tree: Tree) -> Tree:
    spark.healthy(tree, 0)
    return tree


def list_names(tree: Tree) -> list[str]:
    return [port.link.name for port in read_ports(Files(str(tree.root)))]


def test_a_sparks_cable_comes_first_then_its_twin_then_ports_without_a_cable(node: Tree) -> None:
    first, twin, *unplugged = read_ports(Files(str(node.root)))
    assert first.link.name == "enp1s0f0np0"
    assert first.addresses == ("10.0.0.1",)
    assert first.hcas == ("rocep1s0f0", "roceP2p1s0f0")
    assert first.twins == ("enP2p1s0f0np0",)
    assert first.link.speed_mbps == 200_000
    assert first.link.mtu == 9000
    assert first.connected
    assert twin.link.name == "enP2p1s0f0np0"
    assert [port.link.name for port in unplugged] == ["enp1s0f1np1", "enP2p1s0f1np1"]
    assert not any(port.connected for port in unplugged)


def test_twins_are_known_before_they_have_addresses(node: Tree) -> None:
    node.file("/proc/net/fib_trie", "Local:\n     |-- 127.0.0.1\n        /32 host LOCAL\n")
    for twin in spark.TWINS:
        spark.gids(node, twin)
    first = read_ports(Files(str(node.root)))[0]
    assert first.link.name == "enp1s0f0np0"
    assert first.addresses == ()
    assert first.hcas == ("rocep1s0f0",)
    assert first.twins == ("enP2p1s0f0np0",)


@pytest.mark.parametrize(
    ("files", "counts"),
    [
        pytest.param({}, True, id="an address, and no default route"),
        pytest.param({"type": "65534"}, False, id="a tunnel"),
        pytest.param({"bridge/stp_state": "0"}, False, id="a bridge"),
        pytest.param({"wireless/status": "0"}, False, id="Wi-Fi"),
        pytest.param({"master/x": ""}, False, id="a member of a bond"),
        pytest.param({"flags": "0x9"}, False, id="loopback"),
    ],
)
def test_a_port_without_rdma_counts_by_its_address(tree: Tree, files: dict[str, str], counts: bool) -> None:
    tree.file("/proc/net/fib_trie", "Local:\n     |-- 10.0.0.1\n        /32 host LOCAL\n")
    spark.routes(tree, ("net0", "0000000A"))
    spark.interface(tree, "net0")
    for name, text in files.items():
        tree.file(f"/sys/class/net/net0/{name}", f"{text}\n")
    assert list_names(tree) == (["net0"] if counts else [])


def test_the_way_out_is_no_fabric_and_a_fast_port_is_one_by_its_real_speed(tree: Tree) -> None:
    tree.file("/proc/net/fib_trie", "Local:\n     |-- 10.0.0.1\n        /32 host LOCAL\n")
    out = "net0\t00000000\t0101A8C0\t0003\t0\t0\t100\t00000000\t0\t0\t0\n"
    spark.routes(tree, ("net0", "0000000A"))
    tree.file("/proc/net/route", (tree.root / "proc/net/route").read_text() + out)
    spark.interface(tree, "net0", speed=10_000, device="/sys/devices/a")
    spark.interface(tree, "enp1s0f0np0", speed=10_000, device="/sys/devices/b")
    spark.interface(tree, "eth1", speed=100_000, device="/sys/devices/c")
    assert list_names(tree) == ["eth1"]


def test_of_ports_without_rdma_one_with_an_address_comes_before_a_faster_one(tree: Tree) -> None:
    tree.file("/proc/net/fib_trie", "Local:\n     |-- 10.0.0.1\n        /32 host LOCAL\n")
    spark.routes(tree, ("slow", "0000000A"))
    for name, speed in (("fast", 200_000), ("slow", 10_000)):
        spark.interface(tree, name, speed=speed, device=f"/sys/devices/{name}")
    assert list_names(tree) == ["slow", "fast"]


def test_a_machine_without_tables_is_an_error_and_no_empty_list(tree: Tree) -> None:
    with pytest.raises(OSError, match="fib_trie"):
        list_names(tree)
