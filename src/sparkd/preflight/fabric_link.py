"""The link of the fabric: carrier, speed, MTU, and what really arrives at the other nodes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, ClassVar

from msgspec import Struct

from sparkd.host import links, path_mtu
from sparkd.preflight.check import About, Check, Level, Verdict
from sparkd.preflight.problems import Problem, verdict

if TYPE_CHECKING:
    from sparkd.host import Host
    from sparkd.host.links import Link
    from sparkd.host.path_mtu import Path

EXPECTED_MBPS = 200_000
"""What the kernel says of each twin of a ConnectX-7 port, though its PCI lanes carry about 110,000."""


class FabricLinkFacts(Struct, frozen=True):
    links: tuple[Link, ...]
    """The fabric's interface, then what it is made of."""
    paths: tuple[Path, ...]
    """To the other nodes; empty where this node's own interface takes no such frames anyway."""


class FabricLink(Check[FabricLinkFacts], frozen=True):
    """A cable that is in, at its full speed, with large frames from end to end. It warns, and never blocks."""

    interface: str
    peers: tuple[str, ...]
    """Addresses of the other nodes."""
    port: int
    mtu: int
    uses_gpu: bool = True
    """Else the machine need not be a DGX Spark, and no speed is expected."""
    id: ClassVar[str] = "fabric-link"
    about: ClassVar[About] = About(
        levels=(Level.WARN,),
        reads="/sys/class/net; a datagram of fabric.mtu bytes to each other node, 0.3 s at most",
        source="eugr/spark-vllm-docker, docs/NETWORKING.md: MTU 9000, tested end to end; NVIDIA, Connect two Sparks",
        page="""\
Looks at the interface of the fabric (of a bond or a VLAN, also at what it is made of), and sends one datagram of
fabric.mtu bytes, not to be cut in pieces, to a UDP port of each other node that nobody holds: the other kernel answers
that the port is closed, so it has arrived. Where large ones stay without an answer and small ones do not, something
between the nodes takes no large frames: the other interface, or a switch.

  warn     no carrier: the cable is out, or the node at its other end is off. sparkd goes on and awaits that node.
  warn     the link is slower than 200 Gb/s. Asked of interfaces with hardware behind them, by plans that use the GPU.
  warn     the interface's MTU is below fabric.mtu, or the path takes no frames of that size. NVIDIA's own instructions
           leave 1500, which works: RDMA then sends 1024 bytes a packet instead of 4096, and TCP more packets.

An MTU set with `ip link` is gone after the next boot, and a firmware update may reset it: set it in netplan. Whether
the link reaches its speed under load is not visible here: ib_write_bw tells, about 110 Gb/s for one twin.
Where no node answers at all (it is off, or its firewall drops), the path is not judged.""",
    )

    def probe(self, host: Host) -> FabricLinkFacts:
        if not self.peers or not self.interface:
            return FabricLinkFacts((), ())
        found = links.with_lower(host.files, self.interface)
        wide = bool(found) and found[0].carrier is not False and found[0].mtu >= self.mtu
        return FabricLinkFacts(found, path_mtu.look(host, self.peers, self.port, self.mtu) if wide else ())

    def judge(self, facts: FabricLinkFacts) -> Verdict:
        if not self.peers:
            return Verdict(Level.OK, "one node")
        if not facts.links:
            what = f"{self.interface} is not there" if self.interface else "its interface is not known"
            return Verdict(Level.WARN, f"the fabric's link can't be judged: {what}", "set fabric.interface")
        problems = [
            *(problem for link in facts.links for problem in self._link(link)),
            *self._mtu(facts.links[0]),
            *self._paths(facts.paths),
        ]
        return verdict(problems, self._good(facts))

    def _good(self, facts: FabricLinkFacts) -> str:
        top = facts.links[0]
        speed = f", {_gbps(top.speed_mbps)}" if top.physical and top.speed_mbps else ""
        silent = sum(path.fits is None for path in facts.paths)
        reached = f", frames of {self.mtu} arrive at {len(facts.paths) - silent} of {len(facts.paths)}"
        untold = "; the rest did not answer" if silent else ""
        return f"{top.name} {top.operstate}{speed}, MTU {top.mtu}{reached if facts.paths else ''}{untold}"

    def _link(self, link: Link) -> Iterator[Problem]:
        if not link.up or link.carrier is False:
            state = "has no carrier" if link.up else "is not set up"
            hint = "is the cable in, and the node at its other end on?" if link.up else f"ip link set {link.name} up"
            yield Problem(Level.WARN, f"{link.name} {state} ({link.operstate})", hint)
        elif self.uses_gpu and link.physical and link.speed_mbps and link.speed_mbps < EXPECTED_MBPS:
            reason = f"{link.name} runs at {_gbps(link.speed_mbps)}, {_gbps(EXPECTED_MBPS)} expected"
            yield Problem(Level.WARN, reason, f"look at the cable and the firmware: ethtool {link.name}")

    def _mtu(self, top: Link) -> Iterator[Problem]:
        if top.mtu < self.mtu:
            reason = f"{top.name} has an MTU of {top.mtu}, fabric.mtu is {self.mtu}"
            hint = f"set it in netplan on every node (now: ip link set {top.name} mtu {self.mtu}), or lower fabric.mtu"
            yield Problem(Level.WARN, reason, hint)

    def _paths(self, paths: tuple[Path, ...]) -> Iterator[Problem]:
        narrow = [path.address for path in paths if path.fits is False]
        if narrow:
            reason = f"the path to {', '.join(narrow)} takes no frames of {self.mtu}, though this interface does"
            size = self.mtu - (48 if ":" in narrow[0] else 28)
            hint = f"look at the MTU there, and of what lies between: ping -M do -s {size} {narrow[0]}"
            yield Problem(Level.WARN, reason, hint)


def _gbps(mbps: int | None) -> str:
    return f"{(mbps or 0) / 1000:g} Gb/s"
