"""The fabric: addresses, interfaces and RDMA devices of one cable between two nodes.

Each port of a ConnectX-7 is twins on two PCI domains, and one cable is a pair of HCAs (NVIDIA, "Connect two Sparks").
"""

from __future__ import annotations

from tests.machines.illness import Illness
from tests.tree import Tree

PAIRS = {"rocep1s0f0": "enp1s0f0np0", "roceP2p1s0f0": "enP2p1s0f0np0"}
"""HCA to interface, of the port with the cable."""


def healthy(tree: Tree, rank: int) -> None:
    address(tree, f"10.0.0.{rank + 1}")
    for hca, interface in PAIRS.items():
        tree.folder(f"/sys/class/infiniband/{hca}/device/net/{interface}")


def address(tree: Tree, *owned: str) -> None:
    """The machine's addresses, on the first port of its fabric."""
    leaves = "".join(f"     |-- {one}\n        /32 host LOCAL\n" for one in ("127.0.0.1", *owned))
    tree.file("/proc/net/fib_trie", f"Local:\n{leaves}")
    head = "Iface\tDestination\tGateway\tFlags\tRefCnt\tUse\tMetric\tMask\tMTU\tWindow\tIRTT\n"
    route = "enp1s0f0np0\t0000000A\t00000000\t0001\t0\t0\t0\t00FFFFFF\t0\t0\t0\n"
    tree.file("/proc/net/route", head + route)


ILLNESSES: tuple[Illness, ...] = ()
