"""The fabric's address, its link, and the path to the other nodes."""

import pytest
from msgspec.structs import replace
from tests.machines.areas import fabric as machine
from tests.tree import Tree
from tests.unit.plans import HEAD, configured, plan
from tests.unit.verdicts import expect

from sparkd.agent.preflight.check import Level, Verdict, ok
from sparkd.agent.preflight.checks.fabric import FabricAddress, FabricAddressFacts, FabricLink, FabricLinkFacts
from sparkd.base.config import Settings
from sparkd.base.host import Host
from sparkd.base.host.datagrams import PathMtu
from sparkd.base.host.network import Link
from sparkd.base.plan.inputs import CheckInputs

UP = Link("enp1s0f0np0", True, "up", True, 200_000, 9000, physical=True, loopback=False, wireless=False)
ON_UP = FabricAddressFacts(True, ("enp1s0f0np0",), UP, (), ())
ADDRESS = FabricAddress(plan(HEAD), Settings())
LINK = FabricLink("enp1s0f0np0", ("10.0.0.2", "10.0.0.3"), 29510, 9000)
ARRIVES = (PathMtu("10.0.0.2", True), PathMtu("10.0.0.3", True))
NO_CARRIER = replace(ON_UP, carriers=(), link=None)


@pytest.mark.parametrize(
    ("interface", "facts", "level", "words"),
    [
        ("", ON_UP, Level.OK, "10.0.0.1 on enp1s0f0np0, up"),
        ("", replace(ON_UP, owned=False), Level.BLOCK, "no longer has 10.0.0.1"),
        ("", NO_CARRIER, Level.WARN, "no interface that is up"),
        ("", replace(ON_UP, link=replace(UP, loopback=True)), Level.WARN, "is loopback"),
        ("", replace(ON_UP, link=replace(UP, wireless=True)), Level.WARN, "is Wi-Fi"),
        ("enp1s0f0np0", ON_UP, Level.OK, ""),
        ("enp9", replace(ON_UP, interfaces=("lo", "eth0")), Level.BLOCK, "enp9, which this node does not have"),
        ("eth0", ON_UP, Level.WARN, "fabric.interface is eth0, but 10.0.0.1 is on enp1s0f0np0"),
        ("bond0", NO_CARRIER, Level.OK, ""),
    ],
)
def test_the_address_is_on_an_interface_that_is_fit_and_the_one_of_the_settings(
    interface: str, facts: FabricAddressFacts, level: Level, words: str
) -> None:
    awaits = "" if facts.owned else "the fabric's address 10.0.0.1"
    verdict = replace(ADDRESS, settings=configured(fabric={"interface": interface})).judge(facts)
    expect(verdict, level, words, text="" if facts.owned else "the node at the other end", awaits=awaits)


def judge_env(tree: Tree, name: str, value: str) -> Verdict:
    machine.healthy(tree, 0)
    return replace(ADDRESS, plan=plan(HEAD, env={name: value})).run(Host(tree.root))[1]


@pytest.mark.parametrize(
    ("name", "value"),
    [("NCCL_SOCKET_IFNAME", "=enp1"), ("NCCL_SOCKET_IFNAME", "enp9s9"), ("GLOO_SOCKET_IFNAME", "enp1")],
)
def test_a_variable_that_names_no_interface_of_this_node_blocks(tree: Tree, name: str, value: str) -> None:
    verdict = judge_env(tree, name, value)
    expect(verdict, Level.BLOCK, f"{name}={value}: this node has no such interface")
    assert "enp1s0f0np0" in verdict.hint


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("NCCL_SOCKET_IFNAME", "enp1"),
        ("NCCL_SOCKET_IFNAME", "^docker"),
        ("NCCL_SOCKET_IFNAME", "enp9s9,enp1s0f0np0"),
        ("TP_SOCKET_IFNAME", "enp9s9,enp1s0f0np0"),
        ("UCX_NET_DEVICES", "enp9s9"),
    ],
)
def test_a_variable_that_leaves_its_library_an_interface_is_good(tree: Tree, name: str, value: str) -> None:
    expect(judge_env(tree, name, value), Level.OK)


@pytest.mark.parametrize(
    ("facts", "level", "words"),
    [
        pytest.param(FabricLinkFacts((UP,), ARRIVES), Level.OK, "200 Gb/s, MTU 9000, frames of 9000 arrive at 2 of 2"),
        pytest.param(FabricLinkFacts((UP,), (ARRIVES[0], PathMtu("10.0.0.3", None))), Level.OK, "at 1 of 2; the rest"),
        pytest.param(FabricLinkFacts((replace(UP, mtu=8999),), ()), Level.WARN, "MTU of 8999"),
        pytest.param(FabricLinkFacts((replace(UP, mtu=9216),), ARRIVES), Level.OK, "MTU 9216"),
        pytest.param(FabricLinkFacts((replace(UP, speed_mbps=400_000),), ARRIVES), Level.OK, "400 Gb/s"),
        pytest.param(FabricLinkFacts((replace(UP, speed_mbps=None),), ARRIVES), Level.OK, "up, MTU"),
        pytest.param(FabricLinkFacts((replace(UP, speed_mbps=10, physical=False),), ARRIVES), Level.OK, "up, MTU"),
        pytest.param(FabricLinkFacts((replace(UP, carrier=False),), ()), Level.WARN, "has no carrier"),
        pytest.param(FabricLinkFacts((replace(UP, up=False, carrier=None),), ()), Level.WARN, "is not set up"),
        pytest.param(FabricLinkFacts((), ()), Level.WARN, "enp1s0f0np0 is not there"),
    ],
)
def test_the_link_is_judged_and_never_blocks(facts: FabricLinkFacts, level: Level, words: str) -> None:
    expect(LINK.judge(facts), level, words)


def test_a_plan_without_gpus_expects_no_speed() -> None:
    facts = FabricLinkFacts((replace(UP, speed_mbps=10_000),), ARRIVES)
    assert replace(LINK, uses_gpu=False).judge(facts).level is Level.OK


def test_a_part_of_a_bond_without_its_cable_is_named() -> None:
    bond = replace(UP, name="bond0", physical=False, speed_mbps=200_000, lower=("a", "b"))
    parts = (replace(UP, name="a"), replace(UP, name="b", carrier=False, speed_mbps=None))
    assert "b has no carrier" in LINK.judge(FabricLinkFacts((bond, *parts), ARRIVES)).reason


def test_the_command_of_the_hint_sends_a_datagram_of_the_whole_mtu() -> None:
    four = LINK.judge(FabricLinkFacts((UP,), (PathMtu("10.0.0.2", False),)))
    six = LINK.judge(FabricLinkFacts((UP,), (PathMtu("fd00::2", False),)))
    assert four.hint.endswith("ping -M do -s 8972 10.0.0.2")
    assert six.hint.endswith("ping -M do -s 8952 fd00::2")


def test_a_node_alone_has_no_fabric(tree: Tree) -> None:
    host = Host(tree.root)
    assert FabricAddress(plan(), Settings()).run(host)[1].reason == "one node"
    assert FabricLink("", (), 29510, 9000).run(host)[1].reason == "one node"


def test_without_a_plan_what_has_a_cable_is_judged(tree: Tree) -> None:
    host = Host(tree.root)
    check = FabricLink.from_inputs(CheckInputs(None, Settings()))
    assert check.run(host)[1] == ok("no RDMA interface has a cable: one node alone needs none")
    machine.healthy(tree, 0)
    facts, verdict = check.run(host)
    assert facts.paths == ()
    assert all(link.carrier for link in facts.links)
    expect(verdict, Level.OK, "enp1s0f0np0 up with MTU 9000")
    tree.file("/sys/class/net/enp1s0f0np0/speed", "40000\n")
    expect(check.run(host)[1], Level.WARN, "enp1s0f0np0 runs at 40 Gb/s, 200 Gb/s expected")


def test_probes_read_the_machine(tree: Tree) -> None:
    machine.healthy(tree, 0)
    host = Host(tree.root)
    assert ADDRESS.probe(host) == ON_UP
    tree.file("/sys/class/net/bonding_masters", "bond0\n")
    named = replace(ADDRESS, settings=configured(fabric={"interface": "enp9"})).probe(host).interfaces
    assert named[0] == "enP2p1s0f0np0"
    assert "bonding_masters" not in named
    check = FabricLink("enp1s0f0np0", ("10.0.0.2",), 29510, 9000)
    assert check.probe(host) == FabricLinkFacts((UP,), (PathMtu("10.0.0.2", True),))


def test_a_path_is_not_tried_with_what_the_interface_itself_does_not_take(tree: Tree) -> None:
    machine.healthy(tree, 0)
    host = Host(tree.root)
    assert FabricLink("enp1s0f0np0", ("10.0.0.2",), 29510, 9001).probe(host).paths == ()
    assert FabricLink("enp1s0f1np1", ("10.0.0.2",), 29510, 9000).probe(host).paths == ()


def test_a_machine_without_sysfs_warns(tree: Tree) -> None:
    tree.file("/proc/net/fib_trie", "     |-- 10.0.0.1\n        /32 host LOCAL\n")
    host = Host(tree.root)
    assert ADDRESS.judge(ADDRESS.probe(host)).level is Level.WARN
    assert LINK.judge(LINK.probe(host)).level is Level.WARN
