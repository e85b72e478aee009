"""The verdict on the fabric's figures: whether each pair of ports carries what its link should. All of it is pure."""

from collections.abc import Callable, Iterator, Sequence
from math import inf
from typing import Annotated

from msgspec import Meta, Struct

from sparkd.base.lib.text import sanitize
from sparkd.tools.measure.traffic import PairFigures
from sparkd.tools.node.fabric_ports import MOST, FabricPort

OK, SLOW, UNKNOWN = "ok", "slow", "unknown"
USABLE_GBPS = 110.0
"""What one interface of a DGX Spark's ConnectX-7 carries: four PCIe lanes. The kernel reports 200 Gb/s."""
LEAST_SHARE = 0.6
"""Share of what the link should carry. With the MTU of 1500, iperf3 still reached 96 Gb/s."""
CEILING_SHARE = 0.8
"""Share of what iperf3 reaches on this node alone, without a cable: from there on iperf3 itself may be the limit."""
DEGRADED_GBPS = (8.0, 25.0)
"""A degraded ConnectX-7 carries 8 to 25 Gb/s, mostly 13, by TCP and RDMA alike, with a link of 200 (NVIDIA/
dgx-spark-playbooks, pull request 108)."""
HALF_LANES_GBPS = 60.0
"""Two PCIe lanes instead of four carry 55 Gb/s, as in the second slot of an ASUS GX10 (NVIDIA's forum, 367853)."""
LONG_TRIP_US = 1000.0
"""A round trip over a cable takes some 50 us by TCP."""
JUMBO_MTU = 9000


class PortFacts(Struct, frozen=True):
    """An address of a node, with its interface."""

    interface: Annotated[str, Meta(max_length=64)]
    address: Annotated[str, Meta(max_length=64)]
    speed_mbps: Annotated[int, Meta(ge=1, lt=1 << 31)] | None
    mtu: Annotated[int, Meta(ge=0, lt=1 << 31)]
    hca: Annotated[str, Meta(max_length=64)] = ""
    """Its RDMA device, where perftest is installed too."""
    hidden_twins: Annotated[tuple[Annotated[str, Meta(max_length=64)], ...], Meta(max_length=MOST)] = ()
    """Interfaces of the same physical port without an address: a part of its bandwidth that nothing reaches."""


class FabricFacts(Struct, frozen=True):
    """A node's report of its ports."""

    node: Annotated[str, Meta(max_length=256)]
    ports: Annotated[tuple[PortFacts, ...], Meta(max_length=2 * MOST)]


class Pair(Struct, frozen=True):
    """A port of the first node and one of the other, with the figures between them."""

    own: PortFacts
    other: PortFacts
    measured: PairFigures | None
    trouble: Annotated[str, Meta(max_length=1000)] = ""
    """Why nothing was measured, or not RDMA."""
    rdma_gbps: float | None = None
    """Rate to the other node by RDMA; None where a node has no device or no perftest."""

    @property
    def link_gbps(self) -> float | None:
        """The speed of the slower port's link; None where a port's speed is not known."""
        own_mbps, other_mbps = self.own.speed_mbps, self.other.speed_mbps
        return min(own_mbps, other_mbps) / 1000 if own_mbps and other_mbps else None


class FabricVerdict(Struct, frozen=True):
    """Whether a pair carries what it should."""

    outcome: str
    """OK, SLOW or UNKNOWN."""
    reason: str
    hint: str = ""


class Result(Struct, frozen=True):
    """The ports of two nodes; the first node measured."""

    own: FabricFacts
    other: FabricFacts
    ceiling_gbps: float
    pairs: Annotated[tuple[Pair, ...], Meta(max_length=2 * MOST)]


def describe_ports(node: str, own_address: str, ports: Sequence[FabricPort], *, perftest: bool) -> FabricFacts:
    """The node's report: first the port of `own_address`, its address in cluster.nodes, then others with IPv4.

    The first one is there even if no interface has that address.
    """
    addressed = {port.link.name for port in ports if port.addresses}
    described = [
        PortFacts(
            port.link.name,
            address,
            port.link.speed_mbps,
            port.link.mtu,
            port.hcas[0] if perftest and port.hcas else "",
            tuple(twin for twin in port.twins if twin not in addressed),
        )
        for port in ports
        for address in port.addresses
        if address == own_address or ":" not in address
    ]
    if not any(port.address == own_address for port in described):
        described.insert(0, PortFacts("", own_address, None, 0))
    return FabricFacts(node, tuple(sorted(described, key=lambda port: port.address != own_address))[: 2 * MOST])


def pair_ports(
    own: FabricFacts, other: FabricFacts, peer_address: str, interfaces: Callable[[str], tuple[str, ...]]
) -> Iterator[tuple[PortFacts, PortFacts]]:
    """Yield the pair of the addresses in cluster.nodes (the other node's is `peer_address`), then pairs of one subnet.

    `interfaces` returns the interfaces of this node that reach an address without a router.
    """
    unnamed = PortFacts("", peer_address, None, 0)
    peer_port = next((port for port in other.ports if port.address == peer_address), unnamed)
    yield own.ports[0], peer_port
    for other_port in other.ports:
        reaching = interfaces(other_port.address)
        own_ports = [port for port in own.ports[1:] if reaching == (port.interface,)]
        if own_ports and other_port.address != peer_address:
            yield own_ports[0], other_port


def judge(pair: Pair, ceiling_gbps: float) -> FabricVerdict:
    """The verdict on a pair. `ceiling_gbps`: what iperf3 reaches on this node without a cable."""
    figures, link_gbps = pair.measured, pair.link_gbps
    if figures is None:
        hint = f"ping -I {pair.own.address} {pair.other.address}; does a firewall close sparkd's ports?"
        return FabricVerdict(SLOW, pair.trouble or "nothing was measured", hint)
    reached_gbps, method = min(figures.sent_gbps, figures.received_gbps), ""
    if pair.rdma_gbps is not None:  # NCCL uses RDMA, and the programs for it are no limit
        reached_gbps, method, ceiling_gbps = pair.rdma_gbps, " by RDMA", inf
    if link_gbps is None:
        return FabricVerdict(
            UNKNOWN, f"{reached_gbps:.1f} Gb/s; the kernel reports no speed of the link", "ip -brief link"
        )
    usual_gbps = min(link_gbps, USABLE_GBPS)
    compared = f"{reached_gbps:.1f} Gb/s{method} where {usual_gbps:g} are usual"
    if reached_gbps < LEAST_SHARE * usual_gbps:
        if reached_gbps >= CEILING_SHARE * ceiling_gbps:
            limit = f"more can't be seen, for this test reaches {ceiling_gbps:.1f} here"
            reason = f"at least {reached_gbps:.1f} Gb/s: {limit}"
            return FabricVerdict(UNKNOWN, f"{reason} without a cable", "end other work, or measure with ib_write_bw")
        return FabricVerdict(SLOW, compared, _find_hint(pair, reached_gbps, usual_gbps))
    if figures.round_trip_us > LONG_TRIP_US:
        reason = f"a round trip takes {figures.round_trip_us:.0f} us, some 50 are usual"
        return FabricVerdict(SLOW, reason, f"is there more than a cable between them? tracepath {pair.other.address}")
    return FabricVerdict(OK, f"{reached_gbps:.1f} of {usual_gbps:g} Gb/s{method}")


def _find_hint(pair: Pair, reached_gbps: float, usual_gbps: float) -> str:
    if usual_gbps < USABLE_GBPS:
        return f"look at the cable, and at dropped packets: ip -s -s link show {pair.own.interface}"
    if reached_gbps < 1.2:  # a port of 1 Gb/s, with some room for rounding
        return f"as if by the management network: ip route get {pair.other.address}"
    if DEGRADED_GBPS[0] <= reached_gbps <= DEGRADED_GBPS[1]:
        remedy = "shut both nodes down, unplug their power for a minute, test again; then update the firmware"
        return f"a ConnectX-7 in its degraded state carries about 13 Gb/s, with a link of 200: {remedy}"
    mtu = min(pair.own.mtu, pair.other.mtu)
    if mtu < JUMBO_MTU:
        return f"the MTU is {mtu}: set {JUMBO_MTU} in netplan on both nodes"
    if reached_gbps < HALF_LANES_GBPS:
        return "does each function of the ConnectX-7 have four PCIe lanes? sudo lspci -vv: LnkSta, Width x4"
    return f"look at dropped packets, and whether a core is busy: ip -s -s link show {pair.own.interface}"


def describe_twins(test: Result) -> Iterator[tuple[str, str]]:
    """Node, and a text for each port whose twin has no address: the bandwidth of the twin is not measured."""
    for facts in (test.own, test.other):
        for port in facts.ports:
            for twin in port.hidden_twins:
                lost = f"{twin}, the twin of {port.interface}, has no address: half of the port's bandwidth is not used"
                yield sanitize(facts.node, 64), sanitize(lost, 300)
