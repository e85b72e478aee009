"""The GID index that a plan may pin for NCCL is right for every device."""

import pytest
from msgspec.structs import replace
from tests.machines.areas import fabric as machine
from tests.machines.areas.fabric import SECOND
from tests.tree import Tree
from tests.unit.plans import ALONE, HEAD, plan
from tests.unit.verdicts import expect

from sparkd.agent.preflight.check import Level, skipped
from sparkd.agent.preflight.checks.rdma import GidFacts, GidIndex, GidTable
from sparkd.base.host import Host
from sparkd.base.host.infiniband import Gid
from sparkd.base.recipes.schema import Container

V2, V1, LINK_LOCAL = (
    Gid(3, "RoCE v2", "10.0.0.1", ipv4=True, link_local=False),
    Gid(3, "IB/RoCE v1", "10.0.0.1", ipv4=True, link_local=False),
    Gid(3, "RoCE v2", "fe80::1", ipv4=False, link_local=True),
)


def pinned(index: str | None, address: str = "10.0.0.1") -> GidIndex:
    env = () if index is None else (("NCCL_IB_GID_INDEX", index),)
    return GidIndex(replace(plan(), node=replace(HEAD, address=address), env=env, container=Container(gpus="all")))


@pytest.mark.parametrize(
    ("indexes", "level"),
    [
        pytest.param((None, "-1", "-2", "-0x1"), Level.OK, id="unset"),
        pytest.param(("3", "0x3"), Level.SKIPPED, id="a number, and no port is up"),
        pytest.param(("", " ", "auto", "abc", "٣", "9" * 400), Level.BLOCK, id="no number"),
    ],
)
def test_an_index_is_unset_or_a_number(indexes: tuple[str | None, ...], level: Level) -> None:
    for index in indexes:
        assert pinned(index).judge(GidFacts(())).level is level, index


@pytest.mark.parametrize(
    ("table", "level", "words"),
    [
        pytest.param(GidTable("mlx5_0", 1, V2, (3,)), Level.OK, "index 3 is right on mlx5_0", id="right"),
        pytest.param(GidTable("mlx5_0", 1, V1, (5,)), Level.BLOCK, "on mlx5_0 that is IB/RoCE v1 10.0.0.1; the right"),
        pytest.param(
            GidTable("mlx5_0", 1, LINK_LOCAL, (5,)), Level.BLOCK, "fe80::1; the right index is 5", id="link-local"
        ),
        pytest.param(GidTable("mlx5_0", 1, None, (4,)), Level.BLOCK, "is unused; the right index is 4", id="unused"),
        pytest.param(GidTable("mlx5_0", 1, None, ()), Level.BLOCK, "has it an address?", id="no address"),
    ],
)
def test_a_pinned_index_must_be_right_now(table: GidTable, level: Level, words: str) -> None:
    expect(pinned("3").judge(GidFacts((table,))), level, words)


def test_every_device_has_an_index_of_its_own(tree: Tree) -> None:
    machine.healthy(tree, 0)
    host = Host(tree.root)
    assert pinned("3").judge(pinned("3").probe(host)).reason == "index 3 is right on roceP2p1s0f0, rocep1s0f0"
    six, mapped = "fd00:0000:0000:0000:0000:0000:0000:000a", "0000:0000:0000:0000:0000:ffff:0a00:0101"
    machine.gids(tree, SECOND, six, six, mapped, mapped, six, six)
    assert [table.good for table in pinned("3").probe(host).tables] == [(3,), (3,)]
    machine.gids(tree, SECOND, six, six, six, six, mapped, mapped)
    assert [table.good for table in pinned("3").probe(host).tables] == [(5,), (3,)]
    assert [table.good for table in pinned("3", "fd00::a").probe(host).tables] == [(1, 3), ()]


def test_ports_that_nccl_leaves_out_and_those_of_infiniband_are_not_read(tree: Tree) -> None:
    machine.healthy(tree, 0)
    tree.file("/sys/class/infiniband/rocep1s0f0/ports/1/link_layer", "InfiniBand\n")
    assert [table.hca for table in pinned("3").probe(Host(tree.root)).tables] == ["roceP2p1s0f0"]
    tree.file("/sys/class/infiniband/roceP2p1s0f0/ports/1/state", "1: DOWN\n")
    assert pinned("7").run(Host(tree.root))[1] == skipped("not judged: no port is up")


def test_a_plan_that_needs_no_rdma_reads_nothing(tree: Tree) -> None:
    check = GidIndex(replace(pinned("").plan, node=ALONE))
    assert check.judge(check.probe(Host(tree.root))).reason == "one node"
