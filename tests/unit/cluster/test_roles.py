"""A node's place: its rank by the address that it owns, its unit, its peers, the ports that must be free."""

import pytest
from tests.tree import Tree

from sparkd.agent.preflight.checks.ports import Ports
from sparkd.agent.preflight.runner import build_checks
from sparkd.base.cluster import membership
from sparkd.base.config import Settings
from sparkd.base.config.settings import Cluster, Engine, Fabric
from sparkd.base.host import Host
from sparkd.base.lib.errors import AddressAwaitedError, AwaitedError, ConfigError, ExitCode
from sparkd.base.plan.model import Node

THREE = ("10.0.0.1", "10.0.0.2", "10.0.0.3")


def wanted_ports(node: membership.NodeContext) -> list[int]:
    """The ports that must be free for this node."""
    (check,) = (check for check in build_checks(membership.check_inputs(node)) if isinstance(check, Ports))
    return [port.port for port in check.wanted]


def owning(tree: Tree, *addresses: str) -> Host:
    """A machine with these addresses on its fabric, and one elsewhere."""
    leaves = "".join(
        f"     |-- {address}\n        /32 host LOCAL\n" for address in ("127.0.0.1", "192.168.1.7", *addresses)
    )
    tree.file("/proc/net/fib_trie", f"Local:\n{leaves}")
    head = "Iface\tDestination\tGateway\tFlags\tRefCnt\tUse\tMetric\tMask\tMTU\tWindow\tIRTT\n"
    tree.file("/proc/net/route", f"{head}bond0\t0000000A\t00000000\t0001\t0\t0\t0\t00FFFFFF\t0\t0\t0\n")
    tree.folder("/sys/class/infiniband/rocep1s0f0/device/net/bond0")
    return Host(tree.root)


def settings(*nodes: str, **fabric: object) -> Settings:
    own = Fabric.model_validate(fabric)
    return Settings(cluster=Cluster(nodes=nodes), engine=Engine(recipe="tiny-cpu-pair"), fabric=own)


@pytest.mark.parametrize("rank", [0, 1, 2])
def test_the_rank_is_that_of_the_owned_address(tree: Tree, rank: int) -> None:
    node = membership.find_place(settings(*THREE), owning(tree, THREE[rank]))
    assert node == Node(rank, THREE[rank], "10.0.0.1", 3, "bond0", ("rocep1s0f0",))


def test_addresses_are_compared_by_what_they_are_not_by_how_they_are_written(tree: Tree) -> None:
    tree.file("/proc/net/if_inet6", "fd00000000000000000000000000000b 02 40 00 80    bond0\n")
    node = membership.find_place(settings("fd00::a", "FD00:0:0::0B"), owning(tree))
    assert node.rank == 1
    assert node.interface == "bond0"
    assert membership.find_place(settings("::ffff:10.0.0.9", "10.0.0.2"), owning(tree, "10.0.0.9")).rank == 0


def test_an_address_that_is_still_being_probed_is_not_owned_yet(tree: Tree) -> None:
    tree.file("/proc/net/if_inet6", "fd00000000000000000000000000000b 02 40 00 c0    bond0\n")
    with pytest.raises(AddressAwaitedError):
        membership.find_place(settings("fd00::a", "fd00::b"), owning(tree))


def test_fabric_settings_go_before_what_the_machine_has(tree: Tree) -> None:
    configured = settings(*THREE, interface="eth9", hcas=["mlx5_9"])
    node = membership.find_place(configured, owning(tree, "10.0.0.2"))
    assert node.interface == "eth9"
    assert node.hcas == ("mlx5_9",)


def test_an_address_that_is_not_up_is_awaited_and_named(tree: Tree) -> None:
    with pytest.raises(AddressAwaitedError) as caught:
        membership.find_place(settings(*THREE), owning(tree))
    assert caught.value.code is ExitCode.CONFIG
    assert all(address in caught.value.reason for address in (*THREE, "192.168.1.7"))
    assert "127.0.0.1" not in caught.value.reason
    assert all(
        remedy in caught.value.hint
        for remedy in ("other node on?", "sudo netplan apply", "cluster.nodes, on all nodes")
    )


def test_a_node_that_owns_two_of_the_addresses_is_refused(tree: Tree) -> None:
    with pytest.raises(ConfigError, match=r"10\.0\.0\.1 and 10\.0\.0\.3") as caught:
        membership.find_place(settings(*THREE), owning(tree, "10.0.0.3", "10.0.0.1"))
    assert not isinstance(caught.value, AddressAwaitedError)


def test_a_machine_whose_addresses_cannot_be_read_has_no_rank_yet(tree: Tree) -> None:
    with pytest.raises(AwaitedError, match="can't be read") as caught:
        membership.find_place(settings(*THREE), Host(tree.root))
    assert not isinstance(caught.value, AddressAwaitedError)


@pytest.mark.parametrize(("nodes", "address"), [((), "127.0.0.1"), (("10.9.9.9",), "10.9.9.9")])
def test_a_single_node_is_the_head(tree: Tree, nodes: tuple[str, ...], address: str) -> None:
    node = membership.find_place(settings(*nodes), Host(tree.root))
    assert node == Node(0, address, address, 1, "", ())


@pytest.mark.parametrize(("own", "wrong", "right"), [("10.0.0.1", "worker", "head"), ("10.0.0.2", "head", "worker")])
def test_the_wrong_unit_names_the_right_one(tree: Tree, own: str, wrong: str, right: str) -> None:
    with pytest.raises(ConfigError) as caught:
        membership.resolve_context(settings(*THREE), wrong, owning(tree, own))
    enable = f"sudo systemctl enable --now sparkd-{right}"
    assert caught.value.hint == f"sudo systemctl disable --now sparkd-{wrong}; {enable}"
    assert f"the {right}, not a {wrong}" in caught.value.reason


@pytest.mark.parametrize(
    ("own", "role", "ports"),
    [("10.0.0.1", "head", [8000, 29501, 29510, 29511]), ("10.0.0.2", "worker", [29510, 29511])],
)
def test_a_head_needs_the_engines_ports_too_and_a_worker_the_agents_alone(
    tree: Tree, own: str, role: str, ports: list[int]
) -> None:
    assert wanted_ports(membership.resolve_context(settings(*THREE), role, owning(tree, own))) == ports


def test_a_single_node_needs_no_port_on_the_fabric(tree: Tree) -> None:
    alone = Settings(engine=Engine(recipe="tiny-cpu"))
    assert wanted_ports(membership.resolve_context(alone, "head", Host(tree.root))) == [8000, 29511]


def test_the_plan_has_the_address_and_the_interface_of_the_node(tree: Tree) -> None:
    env = dict(membership.resolve_context(settings(*THREE), None, owning(tree, "10.0.0.2")).plan.env)
    assert env["VLLM_HOST_IP"] == "10.0.0.2"
    assert env["GLOO_SOCKET_IFNAME"] == "bond0"


def test_peers_are_the_other_nodes_in_rank_order(tree: Tree) -> None:
    node = membership.resolve_context(settings(*THREE), None, owning(tree, "10.0.0.2"))
    assert node.peers == ((0, "10.0.0.1"), (2, "10.0.0.3"))
