"""The table of addresses (GIDs) of an RDMA port."""

import pytest
from tests.machines.areas import fabric as machine
from tests.tree import Tree

from sparkd.base.host import infiniband
from sparkd.base.host.files import Files


def test_gids_are_those_in_use(tree: Tree) -> None:
    machine.healthy(tree, 0)
    # has a type, but no address: not in use
    tree.file("/sys/class/infiniband/rocep1s0f0/ports/1/gid_attrs/types/6", "RoCE v2\n")
    gids = infiniband.read_gids(Files(str(tree.root)), "rocep1s0f0", 1)
    assert [(gid.index, gid.kind, gid.address) for gid in gids] == [
        (0, "IB/RoCE v1", "fe80::4ebb:47ff:fe00:1"),
        (1, "RoCE v2", "fe80::4ebb:47ff:fe00:1"),
        (2, "IB/RoCE v1", "10.0.0.1"),
        (3, "RoCE v2", "10.0.0.1"),
    ]


def test_a_gid_that_is_no_address_is_an_error(tree: Tree) -> None:
    machine.healthy(tree, 0)
    tree.file("/sys/class/infiniband/rocep1s0f0/ports/1/gids/0", "what?\n")
    with pytest.raises(ValueError, match=r"what\?"):
        infiniband.read_gids(Files(str(tree.root)), "rocep1s0f0", 1)
