"""The interface of an address, and its RDMA devices, from tables as kernels print them."""

import pytest
from tests.machines.areas import fabric as spark
from tests.tree import Tree

from sparkd.base.host.files import Files
from sparkd.base.host.infiniband import hcas_of
from sparkd.base.host.network import canonical, default_routes, find_answering, interface_of

ROUTES = """\
Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT
enP7s7\t00000000\t0101A8C0\t0003\t0\t0\t100\t00000000\t0\t0\t0
enP7s7\t0001A8C0\t00000000\t0001\t0\t0\t100\t00FFFFFF\t0\t0\t0
bond0\t0000000A\t00000000\t0001\t0\t0\t0\t00FFFFFF\t0\t0\t0
vpn0\t0000000A\t00000000\t0001\t0\t0\t0\t000000FF\t0\t0\t0
enP7s7\t0000000A\t0101A8C0\t0003\t0\t0\t0\tE0FFFFFF\t0\t0\t0
*\t0000000A\t00000000\t0201\t0\t0\t0\tF0FFFFFF\t0\t0\t0
broken line
short\t0000000A\t00000000
"""
IF_INET6 = """\
fd00000000000000000000000000000a 09 40 00 80    bond0
fe8000000000000000fc00fffe000001 04 40 20 80   enP7s7
fe8000000000000000fc00fffe000001 05 40 20 80    bond0
"""


@pytest.fixture
def files(tree: Tree) -> Files:
    return Files(str(tree.root))


@pytest.fixture
def routed(tree: Tree, files: Files) -> Files:
    tree.file("/proc/net/route", ROUTES)
    tree.file("/proc/net/if_inet6", IF_INET6)
    return files


@pytest.mark.parametrize(
    ("address", "interface"),
    [
        pytest.param("10.0.0.1", "bond0", id="the narrowest subnet on the link, whatever goes by a gateway"),
        pytest.param("192.168.1.7", "enP7s7", id="another subnet"),
        pytest.param("::ffff:10.0.0.1", "bond0", id="IPv4 mapped into IPv6"),
        pytest.param("10.1.2.3", "vpn0", id="the wider subnet"),
        pytest.param("172.16.0.1", "", id="only the default route"),
        pytest.param("fd00::a", "bond0", id="IPv6"),
        pytest.param("fe80::fc:ff:fe00:1", "", id="on two interfaces"),
        pytest.param("fd00::b", "", id="an unknown IPv6"),
    ],
)
def test_the_interface_is_that_of_the_address(routed: Files, address: str, interface: str) -> None:
    assert interface_of(routed, address) == interface


def test_two_interfaces_on_one_subnet_are_ambiguous(tree: Tree, files: Files) -> None:
    twin = "enP2p1s0f0np0\t0000000A\t00000000\t0001\t0\t0\t0\t00FFFFFF\t0\t0\t0\n"
    tree.file("/proc/net/route", ROUTES + twin)
    assert interface_of(files, "10.0.0.1") == ""


def test_a_route_that_drops_packets_is_of_no_interface(tree: Tree, files: Files) -> None:
    """Rows of Linux 6.18 for `blackhole default` and `blackhole 10.9.0.0/16`."""
    blackholes = (("00000000", "00000000"), ("0000090A", "0000FFFF"))
    rows = (f"*\t{subnet}\t00000000\t0001\t0\t0\t0\t{mask}\t0\t0\t0\n" for subnet, mask in blackholes)
    tree.file("/proc/net/route", ROUTES + "".join(rows))
    assert interface_of(files, "10.9.0.1") == "vpn0"
    assert "*" not in default_routes(files)


@pytest.mark.parametrize("address", ["10.0.0.1", "fd00::a"])
def test_a_machine_without_tables_has_no_known_interface(files: Files, address: str) -> None:
    assert interface_of(files, address) == ""


def test_hcas_are_those_of_the_interface_in_name_order(tree: Tree, files: Files) -> None:
    for hca, interface in (("roceP2p1s0f0", "enP2p1s0f0np0"), ("rocep1s0f0", "enp1s0f0np0"), ("a0", "enp1s0f0np0")):
        tree.folder(f"/sys/class/infiniband/{hca}/device/net/{interface}")
    tree.file("/sys/class/infiniband/rxe0/parent", "eth0\n")
    assert hcas_of(files, "enp1s0f0np0") == ("a0", "rocep1s0f0")
    assert hcas_of(files, "eth0") == ("rxe0",)
    assert hcas_of(files, "lo") == ()
    assert hcas_of(files, "") == ()
    tree.folder("/sys/class/net/bond0/lower_enp1s0f0np0")
    tree.folder("/sys/class/net/bond0/lower_enP2p1s0f0np0")
    assert hcas_of(files, "bond0") == ("a0", "roceP2p1s0f0", "rocep1s0f0")


def test_one_cable_of_a_spark_is_two_hcas(tree: Tree, files: Files) -> None:
    spark.healthy(tree, 0)
    assert hcas_of(files, "enp1s0f0np0") == ("rocep1s0f0", "roceP2p1s0f0")
    assert hcas_of(files, "enP2p1s0f0np0") == ("roceP2p1s0f0", "rocep1s0f0"), "the interface's own is the first"
    assert hcas_of(files, "enp1s0f1np1") == ("rocep1s0f1",), "the port without a cable"
    tree.folder("/sys/class/net/bond0/lower_enp1s0f0np0")
    assert hcas_of(files, "bond0") == ("rocep1s0f0",), "a bond names its members"


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("sys_image_guid", "fc4c:ea03:00f9:9999\n"),
        ("ports/1/state", "1: DOWN\n"),
        ("ports/1/gid_attrs/types/3", "IB/RoCE v1\n"),
        ("ports/1/gids/3", "fe80:0000:0000:0000:4ebb:47ff:fe00:0001\n"),
        ("ports/1/gids/3", "0000:0000:0000:0000:0000:ffff:a9fe:0101\n"),
        ("ports/1/gids/3", "fd00:0000:0000:0000:0000:0000:0000:0001\n"),
        ("ports/1/gids/3", "?"),
    ],
    ids=["another chip", "down", "no RoCE v2", "no address", "169.254.1.1", "another family", "nonsense"],
)
def test_only_a_usable_twin_of_the_same_port_counts(tree: Tree, files: Files, path: str, text: str) -> None:
    spark.healthy(tree, 0)
    tree.file(f"/sys/class/infiniband/roceP2p1s0f0/{path}", text)
    assert hcas_of(files, "enp1s0f0np0") == ("rocep1s0f0",)


def test_devices_without_an_id_of_their_chip_are_no_twins(tree: Tree, files: Files) -> None:
    spark.healthy(tree, 0)
    for name in ("rocep1s0f0", "roceP2p1s0f0"):
        tree.file(f"/sys/class/infiniband/{name}/sys_image_guid", "0000:0000:0000:0000\n")
    assert hcas_of(files, "enp1s0f0np0") == ("rocep1s0f0",)


def test_a_machine_without_rdma_has_no_hcas(files: Files) -> None:
    assert hcas_of(files, "eth0") == ()


@pytest.mark.parametrize(
    ("written", "compared"),
    [("::ffff:10.0.0.1", "10.0.0.1"), ("FD00:0::A", "fd00::a"), ("fe80::1%bond0", "fe80::1"), ("10.0.0.1", "10.0.0.1")],
)
def test_an_address_is_compared_in_one_form(written: str, compared: str) -> None:
    assert canonical(written) == compared


def test_who_answers_is_read_of_neighbours_by_ipv4_alone(tree: Tree, routed: Files) -> None:
    """A zone of another node's report would be looked up as a name."""
    rows = {"10.0.0.2": "0x2", "10.0.0.3": "0x0", "10.0.0.4%spark": "0x2", "172.16.0.1": "0x2"}
    lines = (f"{address} 0x1 {flags} 02:00:00:00:00:01 * bond0\n" for address, flags in rows.items())
    tree.file("/proc/net/arp", "IP address HW type Flags HW address Mask Device\n" + "".join(lines))
    assert find_answering(routed, [*rows, "10.0.0.5", "fd00::a", "spark2", ""]) == {"10.0.0.2": True, "10.0.0.3": False}
