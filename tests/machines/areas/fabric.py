"""The fabric: addresses, interfaces and RDMA devices of one cable between two nodes, and what its peers say.

Each port of a ConnectX-7 is twins on two PCI domains, and one cable is a pair of HCAs (NVIDIA, "Connect two Sparks").
"""

import json
from dataclasses import dataclass

from tests.machines.fault import Fault
from tests.tree import Tree

from sparkd.agent.preflight.check import Level


@dataclass(frozen=True)
class Twin:
    """One function of a ConnectX-7, as a DGX Spark names it."""

    hca: str
    interface: str
    pci: str
    cable: bool

    @property
    def device(self) -> str:
        return f"/sys/devices/pci{self.pci[:4]}:00/{self.pci[:4]}:00:00.0/{self.pci}"


FIRST = Twin("rocep1s0f0", "enp1s0f0np0", "0000:01:00.0", cable=True)
SECOND = Twin("roceP2p1s0f0", "enP2p1s0f0np0", "0002:01:00.0", cable=True)
UNPLUGGED = (
    Twin("rocep1s0f1", "enp1s0f1np1", "0000:01:00.1", cable=False),
    Twin("roceP2p1s0f1", "enP2p1s0f1np1", "0002:01:00.1", cable=False),
)
TWINS = (FIRST, SECOND, *UNPLUGGED)
CHIP = "fc4c:ea03:00f9:4230"
"""As all four devices of a GB10 say it (geerlingguy/sbc-reviews issue 92, ibstat)."""
CONFIG = "/etc/sparkd/conf.d/fabric.toml"
HCAS = '[fabric]\nhcas = ["rocep1s0f0", "roceP2p1s0f0"]\n'
KEY = '[engine.secrets]\nVLLM_API_KEY = "/etc/sparkd/api.key"\n'
ROUTES = "Iface\tDestination\tGateway\tFlags\tRefCnt\tUse\tMetric\tMask\tMTU\tWindow\tIRTT\n"
AGENT = 4000
"""The pid of this node's agent."""


def healthy(tree: Tree, rank: int) -> None:
    own, other = f"10.0.0.{rank + 1}", f"10.0.0.{2 - rank}"
    address(tree, own, f"10.0.1.{rank + 1}")
    tree.file(CONFIG, HCAS + KEY)
    tree.file("/etc/sparkd/api.key", "secret\n", mode=0o600)
    interface(tree, "lo", flags=0x9, operstate="unknown", mtu=65536)
    interface(tree, "enP7s7", speed=10000, mtu=1500, device="/sys/devices/pci0007:00/0007:00:00.0/0007:01:00.0")
    tree.folder("/dev/infiniband")
    for twin in TWINS:
        interface(
            tree,
            twin.interface,
            operstate="up" if twin.cable else "down",
            carrier="1" if twin.cable else "0",
            speed=200000 if twin.cable else -1,
            mtu=9000,
            device=twin.device,
        )
        hca(tree, twin, f"10.0.{TWINS.index(twin)}.{rank + 1}" if twin.cable else "")
    path_mtu(tree, {other: True})
    heard(tree, rank, ahead_seconds=0.0)


def address(tree: Tree, *owned: str) -> None:
    """The machine's addresses: on the first twin of its cable, then on the second."""
    leaves = "".join(f"     |-- {one}\n        /32 host LOCAL\n" for one in ("127.0.0.1", *owned))
    tree.file("/proc/net/fib_trie", f"Local:\n{leaves}")
    routes(tree, (FIRST.interface, "0000000A"), (SECOND.interface, "0001000A"))


def routes(tree: Tree, *subnets: tuple[str, str]) -> None:
    """Subnets of 256 addresses, as the kernel writes them."""
    lines = (f"{name}\t{subnet}\t00000000\t0001\t0\t0\t0\t00FFFFFF\t0\t0\t0\n" for name, subnet in subnets)
    tree.file("/proc/net/route", ROUTES + "".join(lines))


def interface(
    tree: Tree,
    name: str,
    *,
    operstate: str = "up",
    carrier: str = "1",
    speed: int = -1,
    mtu: int = 1500,
    flags: int = 0x1003,
    device: str = "",
) -> None:
    folder = f"/sys/class/net/{name}"
    for key, text in (("operstate", operstate), ("carrier", carrier), ("speed", speed), ("mtu", mtu)):
        tree.file(f"{folder}/{key}", f"{text}\n")
    tree.file(f"{folder}/flags", f"{flags:#x}\n")
    if device:
        tree.folder(f"{device}/net/{name}")
        tree.link(f"{folder}/device", f"../../../..{device}")


def hca(tree: Tree, twin: Twin, ipv4: str) -> None:
    """Its first GIDs are link-local; those of an IPv4 address come third and fourth."""
    folder = f"/sys/class/infiniband/{twin.hca}"
    tree.link(f"{folder}/device", f"../../../..{twin.device}")
    tree.file(f"{folder}/sys_image_guid", f"{CHIP}\n")
    tree.file(f"{folder}/ports/1/state", "4: ACTIVE\n" if twin.cable else "1: DOWN\n")
    tree.file(f"{folder}/ports/1/link_layer", "Ethernet\n")
    mapped = (
        "0000:0000:0000:0000:0000:ffff:{:02x}{:02x}:{:02x}{:02x}".format(*map(int, ipv4.split("."))) if ipv4 else ""
    )
    local = "fe80:0000:0000:0000:4ebb:47ff:fe00:0001"
    gids(tree, twin, local, local, *([mapped] * 2 if mapped else []))


def gids(tree: Tree, twin: Twin, *values: str) -> None:
    """Each twice, of RoCE v1 and of v2; the kernel has no type for a place that is not used."""
    port = f"/sys/class/infiniband/{twin.hca}/ports/1"
    for index in range(8):
        value = values[index] if index < len(values) else "0000:0000:0000:0000:0000:0000:0000:0000"
        tree.file(f"{port}/gids/{index}", f"{value}\n")
        if index < len(values):
            tree.file(f"{port}/gid_attrs/types/{index}", "RoCE v2\n" if index % 2 else "IB/RoCE v1\n")


def path_mtu(tree: Tree, found: dict[str, bool | None]) -> None:
    tree.file("/.sparkd/path_mtu.json", json.dumps(found))


def heard(tree: Tree, rank: int, *, ahead_seconds: float) -> None:
    """The report of this node's living agent, in preflight, which has heard the other node."""
    tree.process(AGENT, "sparkd", start_time=500, argv=("/usr/bin/sparkd", "run"))
    other = {**_report(1 - rank), "phase": "awaiting-peers"}
    peer = {
        "address": f"10.0.0.{2 - rank}",
        "rank": 1 - rank,
        "contact": "answers",
        "since": other["since"],
        "report": other,
        "clock_ahead_seconds": ahead_seconds,
    }
    own = {**_report(rank), "phase": "preflight", "pid": AGENT, "start_time": 500, "peers": [peer]}
    tree.file("/run/sparkd/report.json", json.dumps({"schema": 1, **own}))


def _report(rank: int) -> dict[str, object]:
    return {
        "node": f"spark{rank + 1}",
        "role": "worker" if rank else "head",
        "rank": rank,
        "since": "2026-11-01T08:00:00.000+00:00",
        "epoch": "",
        "incarnation": f"{rank}" * 32,
        "version": "0.1",
    }


def _mtu_1500(tree: Tree) -> None:
    interface(tree, FIRST.interface, speed=200000, mtu=1500)


def _switch_of_1500(tree: Tree) -> None:
    path_mtu(tree, {"10.0.0.2": False})


def _cable_out(tree: Tree) -> None:
    for twin in (FIRST, SECOND):
        interface(tree, twin.interface, operstate="down", carrier="0", speed=-1, mtu=9000)
        tree.file(f"/sys/class/infiniband/{twin.hca}/ports/1/state", "1: DOWN\n")


def _slow_link(tree: Tree) -> None:
    interface(tree, FIRST.interface, speed=100000, mtu=9000)


def _management_port(tree: Tree) -> None:
    routes(tree, ("enP7s7", "0000000A"))
    interface(tree, "enP7s7", speed=10000, mtu=9000)


def _one_subnet(tree: Tree) -> None:
    routes(tree, (FIRST.interface, "0000000A"), (SECOND.interface, "0000000A"))
    tree.file(CONFIG, HCAS.replace("[fabric]\n", f'[fabric]\ninterface = "{FIRST.interface}"\n') + KEY)


def _two_ports_of_one_slot(tree: Tree) -> None:
    tree.file(CONFIG, '[fabric]\nhcas = ["rocep1s0f0", "rocep1s0f1"]\n' + KEY)


def _hca_that_is_not_there(tree: Tree) -> None:
    tree.file(CONFIG, '[fabric]\nhcas = ["rocep1s0f0", "mlx5_1"]\n' + KEY)


def _no_rdma(tree: Tree) -> None:
    tree.file(CONFIG, KEY)
    (tree.root / "sys/class/infiniband").rename(tree.root / "sys/class/infiniband.gone")


def _gid_has_moved(tree: Tree) -> None:
    """Index 3 was right; then the twin's address came again, after one of IPv6."""
    tree.file(CONFIG, f'{HCAS}{KEY}[engine.env]\nNCCL_IB_GID_INDEX = "3"\n')
    local, six = "fe80:0000:0000:0000:4ebb:47ff:fe00:0001", "fd00:0000:0000:0000:0000:0000:0000:000a"
    mapped = "0000:0000:0000:0000:0000:ffff:0a00:0101"
    gids(tree, SECOND, local, local, six, six, mapped, mapped)


def _empty_gid(tree: Tree) -> None:
    tree.file(CONFIG, f'{HCAS}{KEY}[engine.env]\nNCCL_IB_GID_INDEX = ""\n')


def _open_api(tree: Tree) -> None:
    tree.file(CONFIG, HCAS)
    tree.listening((22, 10))


def _clock_ahead(tree: Tree) -> None:
    heard(tree, 0, ahead_seconds=3600.0)


FAULTS: tuple[Fault, ...] = (
    Fault("fabric-mtu-1500", _mtu_1500, Level.WARN, "fabric-link", says="MTU of 1500"),
    Fault("switch-of-1500", _switch_of_1500, Level.WARN, "fabric-link", says="10.0.0.2 takes no frames of 9000"),
    Fault("cable-out", _cable_out, Level.WARN, "fabric-link", says="no carrier", also=("rdma",)),
    Fault("slow-fabric-link", _slow_link, Level.WARN, "fabric-link", says="100 Gb/s"),
    Fault("fabric-on-management-port", _management_port, Level.WARN, "fabric-address", also=("fabric-link",)),
    Fault("twins-in-one-subnet", _one_subnet, Level.WARN, "fabric-address", says="in the subnet of 10.0.0.1"),
    Fault("two-ports-of-one-slot", _two_ports_of_one_slot, Level.WARN, "rdma", says="rocep1s0f0,roceP2p1s0f0"),
    Fault("hca-that-is-not-there", _hca_that_is_not_there, Level.WARN, "rdma", says="mlx5_1", also=("plan-lint",)),
    Fault("no-rdma-device", _no_rdma, Level.WARN, "rdma", says="no RDMA device, so NCCL goes by TCP"),
    Fault("gid-has-moved", _gid_has_moved, Level.BLOCK, "gid", says="on roceP2p1s0f0 that is RoCE v2 fd00::a"),
    Fault("empty-gid-index", _empty_gid, Level.BLOCK, "gid", says="is empty"),
    Fault("open-api", _open_api, Level.WARN, "listeners", says="port 8000"),
    Fault("clock-an-hour-ahead", _clock_ahead, Level.WARN, "peer-clock", says="3600 s ahead"),
)
