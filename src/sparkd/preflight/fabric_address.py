"""This node's address on the fabric: that it has it, and on which interface."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from msgspec import Struct

from sparkd.host import addresses, fabric, infiniband, links
from sparkd.preflight.check import About, Check, Level, Verdict
from sparkd.preflight.problems import Problem, verdict

if TYPE_CHECKING:
    from sparkd.host import Host
    from sparkd.host.links import Link


class FabricAddressFacts(Struct, frozen=True):
    owned: bool
    carriers: tuple[str, ...]
    """Interfaces that may carry the address: more than one where several lie in its subnet."""
    link: Link | None
    """The one that carries it; None where that can't be told."""
    interfaces: tuple[str, ...]
    """Of this machine, where the one that the settings name is none of them."""
    rdma_on: tuple[str, ...]
    """Interfaces with RDMA devices and a cable, where the fabric's has no such device."""


class FabricAddress(Check[FabricAddressFacts], frozen=True):
    """The address of cluster.nodes is here, on an interface that is fit to be the fabric."""

    address: str
    nodes: int
    interface: str = ""
    """As the settings name it; empty where it is found."""
    id: ClassVar[str] = "fabric-address"
    about: ClassVar[About] = About(
        levels=(Level.WARN, Level.BLOCK),
        reads="/proc/net/{fib_trie,if_inet6,route}; /sys/class/net, /sys/class/infiniband",
        source="eugr/spark-vllm-docker, docs/NETWORKING.md; NVIDIA, Connect two Sparks",
        page="""\
A node's rank is that of the address of cluster.nodes that it owns, and over that address the ranks meet. This check
says which interface carries it. The agent waits for the address before it looks at anything else: the fabric may come
up half a minute after the rest of the network.

  block    the address went away since, which is waited for; or fabric.interface names an interface that this machine
           does not have.
  warn     no interface that is up has the address; or it is on loopback or Wi-Fi, or on an interface without RDMA while
           others with a cable have it (10 Gb/s of the management port instead of 200); or fabric.interface is another
           interface than the address is on; or two interfaces lie in the subnet of the address, so that the kernel may
           answer for it on either: give each twin of a ConnectX-7 port a subnet of its own.

Addresses and interfaces: ip -brief address. A node alone has no fabric, and the check is ok.""",
    )

    def probe(self, host: Host) -> FabricAddressFacts:
        if self.nodes == 1:
            return FabricAddressFacts(True, (), None, (), ())
        files = host.files
        carriers = fabric.interfaces_of(files, self.address)
        carrier = carriers[0] if len(carriers) == 1 else ""
        known = links.names(files)
        astray = self.interface and known and self.interface not in known
        return FabricAddressFacts(
            owned=addresses.canonical(self.address) in host.addresses(),
            carriers=carriers,
            link=links.read(files, carrier) if carrier else None,
            interfaces=known if astray else (),
            rdma_on=_rdma_elsewhere(host, carrier) if carrier else (),
        )

    def judge(self, facts: FabricAddressFacts) -> Verdict:
        if self.nodes == 1:
            return Verdict(Level.OK, "one node")
        if not facts.owned:
            reason = f"this node no longer has {self.address}"
            awaited = f"the fabric's address {self.address}"
            return Verdict(Level.BLOCK, reason, "look at: ip -brief address", awaits=awaited)
        problems = [*self._named(facts), *self._carried(facts)]
        link = facts.link
        on = f"on {link.name}, {link.operstate}" if link else f"is here; its interface is {self.interface}"
        return verdict(problems, f"{self.address} {on}")

    def _named(self, facts: FabricAddressFacts) -> list[Problem]:
        if facts.interfaces:
            reason = f"fabric.interface is {self.interface}, which this node does not have"
            return [Problem(Level.BLOCK, reason, f"it has {', '.join(facts.interfaces)}")]
        if self.interface and facts.carriers and self.interface not in facts.carriers:
            reason = f"fabric.interface is {self.interface}, but {self.address} is on {' or '.join(facts.carriers)}"
            return [Problem(Level.WARN, reason, "leave fabric.interface empty, or mend cluster.nodes")]
        return []

    def _carried(self, facts: FabricAddressFacts) -> list[Problem]:
        if len(facts.carriers) > 1:
            reason = f"{' and '.join(facts.carriers)} are in the subnet of {self.address}"
            return [Problem(Level.WARN, reason, "give each interface a subnet of its own")]
        if not facts.carriers and not self.interface:
            reason = f"no interface that is up carries {self.address}"
            return [Problem(Level.WARN, reason, "look at: ip -brief link; or set fabric.interface")]
        link = facts.link
        if link is None:
            return []
        if link.loopback or link.wireless:
            kind = "loopback" if link.loopback else "Wi-Fi"
            reason = f"{self.address} is on {link.name}, which is {kind}"
            return [Problem(Level.WARN, reason, "name the addresses of the cable between the nodes in cluster.nodes")]
        if facts.rdma_on:
            reason = f"{self.address} is on {link.name}, which has no RDMA; {' and '.join(facts.rdma_on)} have it"
            return [Problem(Level.WARN, reason, "name the addresses of the cable between the nodes in cluster.nodes")]
        return []


def _rdma_elsewhere(host: Host, carrier: str) -> tuple[str, ...]:
    """Interfaces with RDMA and a cable, if the carrier of the address has no RDMA."""
    files = host.files
    if fabric.hcas_of(files, carrier):
        return ()
    found = sorted({one for hca in infiniband.names(files) for one in infiniband.interfaces(files, hca)})
    known = (links.read(files, one) for one in found)
    return tuple(link.name for link in known if link is not None and link.carrier)
