"""RDMA devices that NCCL will use."""

import pytest
from msgspec.structs import replace
from tests.machines.areas import fabric as machine
from tests.tree import Tree
from tests.unit.plans import ALONE, HEAD, configured, plan
from tests.unit.verdicts import expect

from sparkd.agent.preflight.check import Level
from sparkd.agent.preflight.checks.rdma import Rdma, RdmaFacts, Selection
from sparkd.base.config import Settings
from sparkd.base.host import Host
from sparkd.base.host.infiniband import Hca, Port
from sparkd.base.recipes.schema import Container

ACTIVE, DOWN = (Port(1, "ACTIVE", True),), (Port(1, "DOWN", True),)
F0 = Hca("rocep1s0f0", ("enp1s0f0np0",), "0000:01:00.0", ACTIVE)
F1 = Hca("rocep1s0f1", ("enp1s0f1np1",), "0000:01:00.1", ACTIVE)
TWIN_F0 = Hca("roceP2p1s0f0", ("enP2p1s0f0np0",), "0002:01:00.0", ACTIVE)
TWIN_F1 = Hca("roceP2p1s0f1", ("enP2p1s0f1np1",), "0002:01:00.1", ACTIVE)
ALL = (TWIN_F0, TWIN_F1, F0, F1)
SOFT = Hca("rxe0", ("eth0",), "", ACTIVE)
DARK = (replace(F0, ports=DOWN), replace(F1, ports=DOWN))
ONE_CABLE = (TWIN_F0, replace(TWIN_F1, ports=DOWN), F0, replace(F1, ports=DOWN))


@pytest.mark.parametrize(
    ("text", "taken"),
    [
        pytest.param("", "rocep1s0f0 rocep1s0f1 roceP2p1s0f0 mlx5_1 mlx5_10", id="all"),
        pytest.param("rocep1s0f0,roceP2p1s0f0", "rocep1s0f0 roceP2p1s0f0", id="names"),
        pytest.param("rocep1", "rocep1s0f0 rocep1s0f1", id="the beginning of a name"),
        pytest.param("mlx5_1", "mlx5_1 mlx5_10", id="the beginning of another name"),
        pytest.param("=mlx5_1", "mlx5_1", id="the whole name"),
        pytest.param("^", "", id="all others than all"),
        pytest.param("^mlx5", "rocep1s0f0 rocep1s0f1 roceP2p1s0f0", id="all others"),
        pytest.param("^=mlx5_1", "rocep1s0f0 rocep1s0f1 roceP2p1s0f0 mlx5_10", id="all but the whole name"),
        pytest.param("=mlx5_1:1,mlx5_10:2", "mlx5_1", id="with the port"),
        pytest.param("mlx5_1, rocep1", "mlx5_1 mlx5_10", id="a blank is part of the name"),
    ],
)
def test_nccl_selects_devices(text: str, taken: str) -> None:
    names = ("rocep1s0f0", "rocep1s0f1", "roceP2p1s0f0", "mlx5_1", "mlx5_10")
    selection = Selection.parse(text)
    assert " ".join(name for name in names if selection.takes(name, 1)) == taken


def rdma(hcas: str = "", *, wanted: tuple[str, ...] = (), verbs: bool = True, **env: str) -> Rdma:
    node = replace(HEAD, interface="enP7s7", hcas=wanted)
    container = Container(gpus="all", devices=("/dev/infiniband",) if verbs else ())
    env_pairs = tuple({"NCCL_IB_HCA": hcas, **env}.items())
    return Rdma(replace(plan(), node=node, env=env_pairs, container=container), Settings())


def of_fabric(interface: str) -> Rdma:
    """The check of a plan that names the devices of the fabric, which is this interface."""
    check = rdma()
    node = replace(check.plan.node, interface=interface)
    return replace(check, plan=replace(check.plan, node=node, insists_on_hcas=True))


def alone(check: Rdma) -> Rdma:
    return replace(check, plan=replace(check.plan, node=ALONE))


PAIR = "rocep1s0f0,roceP2p1s0f0"


@pytest.mark.parametrize(
    ("check", "hcas", "level", "words"),
    [
        pytest.param(rdma(PAIR), ONE_CABLE, Level.OK, "ACTIVE", id="one cable"),
        pytest.param(rdma("rocep1s0f0"), ONE_CABLE, Level.OK, "not used on the same cable: roceP2p1s0f0", id="half"),
        pytest.param(rdma("rocep1s0f0"), (SOFT, *ALL), Level.OK, "ACTIVE; not used on the same cable: roceP2p1s0f0 ("),
        pytest.param(rdma(), ALL, Level.OK, "ACTIVE", id="two cables, all devices"),
        pytest.param(rdma("rocep1s0f0,rocep1s0f1"), ALL, Level.WARN, "share the lanes of one slot (0000:01:00)"),
        pytest.param(rdma("rocep1s0f0,rocep1s0f1"), (F0, F1), Level.OK, "ACTIVE", id="a machine with one slot"),
        pytest.param(rdma(PAIR), ALL[1:], Level.WARN, "no RDMA device is called roceP2p1s0f0", id="one is missing"),
        pytest.param(rdma(PAIR, wanted=("mlx5_0",)), ONE_CABLE, Level.WARN, "called mlx5_0", id="fabric.hcas"),
        pytest.param(rdma("mlx5"), ALL, Level.WARN, "NCCL_IB_HCA=mlx5 selects no RDMA device of this", id="none"),
        pytest.param(rdma("^roce"), ALL, Level.WARN, "NCCL_IB_HCA=^roce selects no RDMA device of", id="all left out"),
        pytest.param(rdma(NCCL_NET="IB"), (), Level.BLOCK, "no RDMA device, and NCCL_NET=IB insists", id="no TCP"),
        pytest.param(rdma(PAIR, NCCL_NET="IB"), ONE_CABLE, Level.OK, "ACTIVE", id="TCP forbidden and not needed"),
        pytest.param(rdma(), ONE_CABLE, Level.OK, "rocep1s0f0 (enp1s0f0np0): ACTIVE", id="the other port has no cable"),
        pytest.param(rdma("roce"), ONE_CABLE, Level.OK, "rocep1s0f0 (enp1s0f0np0): ACTIVE", id="all of a kind"),
        pytest.param(rdma("rocep1s0f1"), ONE_CABLE, Level.WARN, "(enp1s0f1np1): port 1 is DOWN; enp1s0f1np1"),
        pytest.param(rdma("rocep1s0f0,rocep1s0f1"), ONE_CABLE, Level.WARN, "rocep1s0f1 (enp1s0f1np1): port 1 is DOWN"),
        pytest.param(rdma("rxe0,roce"), (SOFT, *ONE_CABLE), Level.OK, "rxe0 (eth0), roceP2p1s0f0", id="in software"),
        pytest.param(rdma(), DARK, Level.WARN, "rocep1s0f0 (enp1s0f0np0): port 1 is DOWN; rocep1s0f1", id="no cable"),
        pytest.param(rdma(PAIR, verbs=False), ONE_CABLE, Level.WARN, "no /dev/infiniband", id="the container"),
    ],
)
def test_the_devices_of_the_plan_are_here_and_up(check: Rdma, hcas: tuple[Hca, ...], level: Level, words: str) -> None:
    expect(check.judge(RdmaFacts(hcas, no_carrier=("enp1s0f1np1", "enP2p1s0f1np1"))), level, words)


SLOWER = "slower than the 98 Gb/s"


@pytest.mark.parametrize(
    ("check", "hcas", "on_fabric", "transport", "words", "awaited"),
    [
        pytest.param(rdma(PAIR), ONE_CABLE, True, "rdma", "ACTIVE", False, id="as it should be"),
        pytest.param(rdma(), (), True, "tcp", SLOWER, True, id="no device"),
        pytest.param(rdma("mlx5"), ALL, True, "tcp", SLOWER, True, id="none of that name"),
        pytest.param(rdma(), DARK, True, "tcp", SLOWER, True, id="none is up"),
        pytest.param(rdma(PAIR, verbs=False), ALL, True, "tcp", SLOWER, False, id="not in the container"),
        pytest.param(of_fabric("enP7s7"), ALL, False, "tcp", SLOWER, True, id="none of the fabric"),
        pytest.param(rdma(NCCL_NET="IB"), (), True, "rdma", "insists", True, id="TCP is forbidden"),
        pytest.param(rdma(NCCL_IB_DISABLE="0"), (), True, "tcp", SLOWER, True, id="0 is the default"),
        pytest.param(alone(rdma()), (), True, "", "one node", False, id="not needed"),
    ],
)
def test_without_a_device_that_is_up_nccl_goes_by_tcp_and_devices_are_awaited(
    check: Rdma, hcas: tuple[Hca, ...], on_fabric: bool, transport: str, words: str, awaited: bool
) -> None:
    facts = RdmaFacts(hcas, (), on_fabric)
    assert check.transport(facts) == transport
    expect(check.judge(facts), reason=words, awaits="RDMA devices" if awaited else "")


def test_devices_that_are_there_but_down_do_not_do_where_the_plan_insists() -> None:
    verdict = rdma(NCCL_NET="IB").judge(RdmaFacts(DARK, ()))
    expect(verdict, Level.BLOCK, "no RDMA device is up, and NCCL_NET=IB insists on one")
    assert verdict.awaits


def test_devices_of_another_port_than_the_fabrics_are_none(tree: Tree) -> None:
    tree.file("/sys/class/infiniband/rxe0/parent", "eth0\n")
    for name in ("eth0", "eth1"):
        machine.interface(tree, name)
    for name, on_fabric in (("eth0", True), ("eth1", False)):
        assert of_fabric(name).probe(Host(tree.root)).on_fabric is on_fabric


def test_a_plan_that_needs_no_rdma_reads_nothing(tree: Tree) -> None:
    host = Host(tree.root)
    needless = alone(rdma(NCCL_NET="IB"))
    assert needless.judge(needless.probe(host)).reason == "one node"


def test_rdma_made_in_software_has_no_slot(tree: Tree) -> None:
    tree.file("/sys/class/infiniband/rxe0/parent", "eth0\n")
    tree.file("/sys/class/infiniband/rxe0/ports/1/state", "4: ACTIVE\n")
    tree.file("/sys/class/infiniband/rxe0/ports/1/link_layer", "Ethernet\n")
    machine.interface(tree, "eth0")
    facts = rdma().probe(Host(tree.root))
    assert facts == RdmaFacts((Hca("rxe0", ("eth0",), "", ACTIVE),), ())
    assert rdma().judge(facts).reason == "rxe0 (eth0): ACTIVE"


def test_a_port_that_can_not_be_read_is_no_port_that_is_down(tree: Tree) -> None:
    tree.folder("/sys/class/infiniband/rxe0/ports/1")
    with pytest.raises(FileNotFoundError):
        rdma().probe(Host(tree.root))


NODES_HCAS = {"NCCL_IB_HCA": "{node.hcas}"}


@pytest.mark.parametrize(
    ("recipe_env", "settings_env", "insists"),
    [
        pytest.param({}, {}, False, id="neither"),
        pytest.param({"NCCL_IB_HCA": None}, {}, False, id="left out by the recipe"),
        pytest.param(NODES_HCAS, {}, True, id="the recipe"),
        pytest.param({}, NODES_HCAS, True, id="the settings"),
        pytest.param(NODES_HCAS, {"NCCL_IB_HCA": "rocep1s0f0"}, False, id="the settings name another"),
    ],
)
def test_only_what_recipe_or_settings_name_insists_on_the_devices_of_the_fabric(
    recipe_env: dict[str, str | None], settings_env: dict[str, str | None], insists: bool
) -> None:
    """The nodes' addresses may be of a LAN, and the cable with the devices another."""
    made = plan(replace(HEAD, hcas=()), configured(engine={"env": settings_env}), env=recipe_env)
    with_devices = replace(made, container=Container(devices=("/dev/infiniband",)))
    check = Rdma(with_devices, Settings())
    facts = RdmaFacts((F0,), (), on_fabric=not check.interface)
    assert check.transport(facts) == ("tcp" if insists else "rdma")
    assert ("or NCCL_IB_HCA: null" in check.judge(facts).hint) is insists
