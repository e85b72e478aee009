"""The machine's network interfaces, and the frames that paths to other nodes take."""

import pytest
from tests.machines.areas import fabric as machine
from tests.tree import Tree

from sparkd.base.host import Host, datagrams, network
from sparkd.base.host.files import Files
from sparkd.base.host.network import Link


def test_links_of_a_vlan_on_a_bond_are_all_found(tree: Tree) -> None:
    for name, lower in (("bond0.7", "bond0"), ("bond0", "a"), ("a", "")):
        machine.interface(tree, name)
        if lower:
            tree.link(f"/sys/class/net/{name}/lower_{lower}", f"../{lower}")
    tree.link("/sys/class/net/a/lower_bond0", "../bond0")
    assert [link.name for link in network.read_links(Files(str(tree.root)), "bond0.7")] == ["bond0.7", "bond0", "a"]


def test_what_a_kernel_does_not_say_of_an_interface_is_none(tree: Tree) -> None:
    tree.file("/sys/class/net/x/mtu", "1500\n")
    tree.file("/sys/class/net/x/speed", "4294967295\n")
    tree.file("/sys/class/net/bonding_masters", "bond0\n")
    files = Files(str(tree.root))
    assert network.read_link(files, "x") == Link("x", False, "unknown", None, None, 1500, False, False, False)
    assert network.read_link(files, "y") is None
    assert network.read_link(files, "bonding_masters") is None


@pytest.mark.parametrize(("key", "text"), [("mtu", "many"), ("flags", "up"), ("speed", "fast")])
def test_what_is_no_interface_of_linux_is_an_error_of_reading(tree: Tree, key: str, text: str) -> None:
    machine.interface(tree, "x")
    tree.file(f"/sys/class/net/x/{key}", text)
    with pytest.raises(ValueError, match=text):
        network.read_link(Files(str(tree.root)), "x")


@pytest.mark.parametrize("text", ["[]", "{", '"x"'])
def test_a_record_of_paths_that_is_none_is_an_error_of_reading(tree: Tree, text: str) -> None:
    tree.file("/.sparkd/path_mtu.json", text)
    with pytest.raises(ValueError, match=r"path_mtu\.json"):
        datagrams.probe_paths(Host(tree.root), ["10.0.0.2"], 29510, 9000)


def test_a_tree_returns_recorded_paths(tree: Tree) -> None:
    machine.path_mtu(tree, {"10.0.0.2": False, "10.0.0.3": None})
    wanted = ("10.0.0.2", "10.0.0.3", "10.0.0.4")
    paths = datagrams.probe_paths(Host(tree.root), wanted, 29510, 9000)
    assert [path.fits for path in paths] == [False, None, None]
