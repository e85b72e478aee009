"""This node's address on the fabric, and its link there."""

from collections.abc import Iterator

from msgspec import Struct

from sparkd.agent.preflight.check import Check, Level, Verdict, block, combine_verdicts, ok, warn
from sparkd.agent.preflight.checks.rdma import CABLE, Selection
from sparkd.base.config import Settings
from sparkd.base.host import Host, datagrams, infiniband, network
from sparkd.base.host.datagrams import PathMtu
from sparkd.base.host.files import Files
from sparkd.base.host.network import Link
from sparkd.base.lib.text import sanitize
from sparkd.base.plan.inputs import CheckInputs
from sparkd.base.plan.model import LaunchPlan

SOCKET_VARIABLES = ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME")
"""Variables by which libraries choose interfaces."""


class FabricAddressFacts(Struct, frozen=True):
    owned: bool
    carriers: tuple[str, ...]
    """Interfaces that may carry the address: more than one where several lie in its subnet."""
    link: Link | None
    """The interface that carries it; None where that is unknown."""
    interfaces: tuple[str, ...]
    """This machine's, for the hint; read only where a setting or variable names a missing one."""
    rdma_on: tuple[str, ...]
    """Interfaces with an RDMA device and a cable, where the fabric's interface has no such device."""
    misnamed: tuple[str, ...] = ()
    """Variables that name interfaces, none of which this machine has: NAME=VALUE."""


class FabricAddress(Check[FabricAddressFacts], frozen=True):
    plan: LaunchPlan
    settings: Settings
    id = "fabric-address"
    levels = (Level.WARN, Level.BLOCK)

    def probe(self, host: Host) -> FabricAddressFacts:
        node, setting = self.plan.node, self.settings.fabric.interface
        if node.cluster_size == 1:
            return FabricAddressFacts(owned=True, carriers=(), link=None, interfaces=(), rdma_on=())
        files = host.files
        carriers = network.interfaces_of(files, node.address)
        carrier = carriers[0] if len(carriers) == 1 else ""
        interfaces = network.link_names(files)
        misnamed = tuple(self._find_misnamed(interfaces))
        lacks_rdma = carrier != "" and not infiniband.hcas_of(files, carrier)
        return FabricAddressFacts(
            owned=network.canonical(node.address) in host.addresses(),
            carriers=carriers,
            link=network.read_link(files, carrier) if carrier else None,
            interfaces=interfaces if misnamed or (setting and setting not in interfaces) else (),
            rdma_on=tuple(link.name for link in _read_rdma_links(files) if link.carrier) if lacks_rdma else (),
            misnamed=misnamed,
        )

    def _find_misnamed(self, interfaces: tuple[str, ...]) -> Iterator[str]:
        if self.plan.container.network != "host" or not interfaces:
            return
        for name, value in self.plan.env:
            if name in SOCKET_VARIABLES and value.removeprefix("=") != self.plan.node.interface:
                # NCCL takes beginnings of names, the others whole ones.
                selection = Selection.parse(value if name.startswith("NCCL_") else f"={value}")
                if selection.names and len(selection.missing(interfaces)) == len(selection.names):
                    yield f"{name}={value}"

    def judge(self, facts: FabricAddressFacts) -> Verdict:
        address, setting = self.plan.node.address, self.settings.fabric.interface
        if self.plan.node.cluster_size == 1:
            return ok("one node")
        if not facts.owned:
            reason, awaits = f"this node no longer has {address}", f"the fabric's address {address}"
            return block(reason, f"{CABLE}; where netplan has the address: sudo netplan apply", awaits=awaits)
        link = facts.link
        interface = f"; its interface is {setting}" if setting else ""
        place = f"on {link.name}, {link.operstate}" if link else f"is here{interface}"
        return combine_verdicts([*self._judge_names(facts), *self._judge_carriers(facts)], f"{address} {place}")

    def _judge_names(self, facts: FabricAddressFacts) -> Iterator[Verdict]:
        """Problems of variables and of the setting, which name interfaces."""
        setting, address, carriers = self.settings.fabric.interface, self.plan.node.address, facts.carriers
        for text in facts.misnamed:
            reason = f"{sanitize(text, 80)}: this node has no such interface"
            here = ", ".join(facts.interfaces)
            yield block(reason, f"take it out of the recipe or engine.env: sparkd sets the fabric's; here are {here}")
        if facts.interfaces and setting not in ("", *facts.interfaces):
            reason = f"fabric.interface is {setting}, which this node does not have"
            yield block(reason, f"leave it empty, or set it to one of: {', '.join(facts.interfaces)}")
        elif setting and carriers and setting not in carriers:
            reason = f"fabric.interface is {setting}, but {address} is on {' or '.join(carriers)}"
            yield warn(reason, "leave fabric.interface empty, or correct cluster.nodes")

    def _judge_carriers(self, facts: FabricAddressFacts) -> Iterator[Verdict]:
        """Problems of the interfaces that carry the address."""
        address, carriers, link = self.plan.node.address, facts.carriers, facts.link
        if len(carriers) > 1:
            reason = f"{' and '.join(carriers)} are in the subnet of {address}"
            yield warn(reason, "give each interface a subnet of its own, in /etc/netplan: ip -brief address")
        elif not carriers and not self.settings.fabric.interface:
            reason = f"no interface that is up carries {address}"
            yield warn(reason, "look at: ip -brief link; or set fabric.interface")
        elif link is not None and (flaw := _find_flaw(link, facts.rdma_on)):
            reason = f"{address} is on {link.name}, which {flaw}"
            yield warn(reason, "in cluster.nodes, name the addresses of the cable between the nodes: ip -brief address")


def _find_flaw(link: Link, rdma_on: tuple[str, ...]) -> str:
    """Why the link is hardly the cable between the nodes; empty where it may be."""
    if link.loopback:
        return "is loopback"
    if link.wireless:
        return "is Wi-Fi"
    return f"has no RDMA; {' and '.join(rdma_on)} have it" if rdma_on else ""


def _read_rdma_links(files: Files) -> tuple[Link, ...]:
    names = sorted({name for hca in infiniband.hca_names(files) for name in infiniband.interfaces(files, hca)})
    return tuple(link for link in (network.read_link(files, name) for name in names) if link is not None)


EXPECTED_MBPS = 200_000
"""Reported by the kernel for each twin of a ConnectX-7 port, though its PCI lanes carry about 110,000."""


class FabricLinkFacts(Struct, frozen=True):
    links: tuple[Link, ...]
    """The fabric's interface, then its lower interfaces."""
    paths: tuple[PathMtu, ...]
    """Paths to the other nodes; empty where the own interface can't try them, such as with an MTU below fabric.mtu."""


class FabricLink(Check[FabricLinkFacts], frozen=True):
    interface: str | None
    """The fabric's; empty where it is not known. None without a plan: then RDMA interfaces with a cable are judged."""
    peers: tuple[str, ...]
    port: int
    mtu: int
    uses_gpu: bool = True
    """Whether the plan uses a GPU; else the machine may be no DGX Spark, and no speed is expected."""
    id = "fabric-link"
    levels = (Level.WARN,)

    @classmethod
    def from_inputs(cls, inputs: CheckInputs) -> "FabricLink":
        port, mtu = inputs.settings.cluster.report_port, inputs.settings.fabric.mtu
        interface = None if inputs.plan_if_any is None else inputs.plan.node.interface
        return cls(interface, inputs.peers, port, mtu, inputs.uses_gpu)

    def probe(self, host: Host) -> FabricLinkFacts:
        if self.interface is None:
            return FabricLinkFacts(tuple(link for link in _read_rdma_links(host.files) if link.carrier), ())
        if not self.peers or not self.interface:
            return FabricLinkFacts((), ())
        links = network.read_links(host.files, self.interface)
        takes_frames = bool(links) and links[0].carrier is not False and links[0].mtu >= self.mtu
        paths = datagrams.probe_paths(host, self.peers, self.port, self.mtu) if takes_frames else ()
        return FabricLinkFacts(links, paths)

    def judge(self, facts: FabricLinkFacts) -> Verdict:
        if self.interface is None and not facts.links:
            return ok("no RDMA interface has a cable: one node alone needs none")
        if self.interface is not None and not self.peers:
            return ok("one node")
        if not facts.links:
            what = f"{self.interface} is not there" if self.interface else "its interface is not known"
            return warn(f"the fabric's link can't be judged: {what}", "set fabric.interface to one of: ip -brief link")
        return combine_verdicts(self._find_problems(facts), self._describe_good(facts))

    def _describe_good(self, facts: FabricLinkFacts) -> str:
        if self.interface is None:
            return ", ".join(f"{link.name} {link.operstate} with MTU {link.mtu}" for link in facts.links)
        fabric_link = facts.links[0]
        speed = f", {_format_gbps(fabric_link.speed_mbps)}" if fabric_link.physical and fabric_link.speed_mbps else ""
        silent_count = sum(path.fits is None for path in facts.paths)
        reach = f", frames of {self.mtu} arrive at {len(facts.paths) - silent_count} of {len(facts.paths)}"
        silent_note = "; the rest did not answer" if silent_count else ""
        state = f"{fabric_link.name} {fabric_link.operstate}{speed}, MTU {fabric_link.mtu}"
        return f"{state}{reach if facts.paths else ''}{silent_note}"

    def _find_problems(self, facts: FabricLinkFacts) -> Iterator[Verdict]:
        for link in facts.links:
            if not link.up:
                yield warn(f"{link.name} is not set up ({link.operstate})", f"sudo ip link set {link.name} up")
            elif link.carrier is False:
                hint = "is the cable in, and the node at its other end on? ip -brief link"
                yield warn(f"{link.name} has no carrier ({link.operstate})", hint)
            elif self.uses_gpu and link.physical and link.speed_mbps and link.speed_mbps < EXPECTED_MBPS:
                reason = f"{link.name} runs at {_format_gbps(link.speed_mbps)}, {_format_gbps(EXPECTED_MBPS)} expected"
                yield warn(reason, f"look at the cable and the firmware: ethtool {link.name}")
        own_link = facts.links[0]
        if self.interface is not None and own_link.mtu < self.mtu:
            reason = f"{own_link.name} has an MTU of {own_link.mtu}, fabric.mtu is {self.mtu}"
            command = f"sudo ip link set {own_link.name} mtu {self.mtu}"
            yield warn(reason, f"in netplan on every node (now: {command}), or lower fabric.mtu")
        if addresses := [path.address for path in facts.paths if path.fits is False]:
            reason = f"the path to {', '.join(addresses)} takes no frames of {self.mtu}, though this interface does"
            payload_bytes = self.mtu - (48 if ":" in addresses[0] else 28)  # less the headers of IP and ICMP
            hint = f"look at the MTU there, and of what lies between: ping -M do -s {payload_bytes} {addresses[0]}"
            yield warn(reason, hint)


def _format_gbps(mbps: int) -> str:
    return f"{mbps / 1000:g} Gb/s"
