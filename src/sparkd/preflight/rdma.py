"""RDMA: the devices that NCCL will use between the nodes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, ClassVar

from msgspec import Struct

from sparkd.host import infiniband, links
from sparkd.host.infiniband import ACTIVE, Hca, Port
from sparkd.lib.text import sanitize
from sparkd.preflight import nccl_hcas
from sparkd.preflight.check import About, Check, Level, Verdict
from sparkd.preflight.nccl_hcas import VERBS, Selection
from sparkd.preflight.problems import Problem, verdict

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sparkd.host import Host


class RdmaFacts(Struct, frozen=True):
    hcas: tuple[Hca, ...]
    no_carrier: tuple[str, ...]
    """Interfaces of the devices that have nothing at their other end."""


class Rdma(Check[RdmaFacts], frozen=True):
    """Without RDMA NCCL goes by TCP, many times slower, and says so in a log that nobody reads."""

    env: Mapping[str, str]
    wanted: tuple[str, ...]
    """fabric.hcas, given or found."""
    reaches_verbs: bool
    """Whether the container sees the devices of /dev/infiniband."""
    not_needed: str = ""
    """Why the plan needs no RDMA; empty where it does."""
    id: ClassVar[str] = "rdma"
    about: ClassVar[About] = About(
        levels=(Level.WARN, Level.BLOCK),
        reads="/sys/class/infiniband: devices, ports, their PCI functions; /sys/class/net",
        source="eugr/spark-vllm-docker, docs/NETWORKING.md; ServeTheHome on the ConnectX-7 of a DGX Spark",
        page="""\
Between nodes NCCL uses RDMA (RoCE) where it can, and TCP where it can't, without failing. This check says what it will
find: the devices that NCCL_IB_HCA of the plan selects (beginnings of names; a leading = means whole names, a leading ^
all others), each with its port's state and its interface, as sysfs tells them.

  block    the plan insists on RDMA (NCCL_NET=IB), and this machine has no device that it selects: NCCL would fail.
  warn     no device, or a name that none has; a port that is named, or the last one, and is not ACTIVE (the cable is
           out, or the node at its other end is off: NCCL leaves it out); devices that share one slot while their twins
           are idle; a container that is neither privileged nor given /dev/infiniband.

Each port of a DGX Spark's ConnectX-7 is two devices, on two PCI domains of four lanes each. One cable is the pair of
the same number on both domains: rocep1s0f0,roceP2p1s0f0, or rocep1s0f1,roceP2p1s0f1. rocep1s0f0,rocep1s0f1 are two
ports on one domain, and share four lanes. Where fabric.hcas is empty, sparkd takes the pair of the fabric's interface:
devices of one chip (sys_image_guid), the same function of both domains, if the second is up and its interface has an
address as the first's has: none of 169.254.*, in a subnet of its own, and on every node or on none.

NCCL_IB_DISABLE=1, NCCL_NET=Socket, a plan without GPUs and a node alone need no RDMA.""",
    )

    def probe(self, host: Host) -> RdmaFacts:
        if self.not_needed:
            return RdmaFacts((), ())
        hcas = infiniband.read(host.files)
        found = [links.read(host.files, name) for name in dict.fromkeys(one for hca in hcas for one in hca.interfaces)]
        return RdmaFacts(hcas, tuple(link.name for link in found if link is not None and link.carrier is not True))

    def judge(self, facts: RdmaFacts) -> Verdict:
        if self.not_needed:
            return Verdict(Level.OK, self.not_needed)
        selection = Selection.of(self.env.get(nccl_hcas.NAMES, ""))
        ports = nccl_hcas.selected(selection, facts.hcas)
        up = tuple(dict.fromkeys(hca for hca, port in ports if port.state == ACTIVE))
        # Half of the ports of a DGX Spark have no cable: where all are selected, those that are up are meant.
        meant = [(hca, port) for hca, port in ports if not up or hca in up or selection.names_whole(hca.name)]
        used = tuple(dict.fromkeys(hca for hca, _ in meant))
        problems = [*self._absent(facts, selection, used), *_shared_lanes(facts, used), *_down(facts, meant)]
        if not self.reaches_verbs:
            reason = f"the container is given no {VERBS}, so NCCL goes by TCP"
            problems.append(Problem(Level.WARN, reason, f"container.privileged = true, or {VERBS} among its devices"))
        return verdict(problems, f"{', '.join(_name(hca) for hca in used)}: ACTIVE{_idle_twins(facts, used)}")

    def _absent(self, facts: RdmaFacts, selection: Selection, used: tuple[Hca, ...]) -> Iterator[Problem]:
        present = tuple(hca.name for hca in facts.hcas)
        here = f"this machine has {', '.join(present)}" if present else "look at: rdma link; lspci; dmesg"
        missing = dict.fromkeys((*selection.missing(present), *(one for one in self.wanted if one not in present)))
        by_force = self.env.get("NCCL_NET", "").upper() == "IB"
        if not used:
            asked = f"{nccl_hcas.NAMES}={sanitize(self.env.get(nccl_hcas.NAMES, ''))} selects no RDMA device"
            what = f"{asked} of this machine" if present else "this machine has no RDMA device"
            then = "and NCCL_NET=IB insists on one" if by_force else "so NCCL goes by TCP"
            yield Problem(Level.BLOCK if by_force else Level.WARN, f"{what}, {then}", here)
        elif missing:
            reason = f"no RDMA device is called {', '.join(missing)}, which the plan names"
            yield Problem(Level.WARN, reason, f"{here}: mend fabric.hcas or {nccl_hcas.NAMES}")


def _down(facts: RdmaFacts, meant: list[tuple[Hca, Port]]) -> Iterator[Problem]:
    for hca, port in meant:
        if port.state != ACTIVE:
            dark = ", ".join(one for one in hca.interfaces if one in facts.no_carrier)
            why = f"; {dark} has no carrier" if dark else ""
            hint = "is its cable in, and the node at the other end on? Else leave it out of fabric.hcas"
            yield Problem(Level.WARN, f"{_name(hca)}: port {port.number} is {port.state}{why}", hint)


def _shared_lanes(facts: RdmaFacts, used: tuple[Hca, ...]) -> Iterator[Problem]:
    """Several functions of one slot, while another slot's twins could carry half of it."""
    if len(used) < 2 or len({hca.slot for hca in used}) > 1:
        return
    twins = [twin for hca in used for twin in _twins(hca, facts.hcas)]
    if twins:
        reason = f"{' and '.join(hca.name for hca in used)} share the lanes of one slot ({used[0].slot})"
        pair = ",".join((used[0].name, twins[0].name))
        yield Problem(Level.WARN, reason, f"one cable is the same port on both PCI domains: {pair}")


def _twins(hca: Hca, among: tuple[Hca, ...]) -> tuple[Hca, ...]:
    """The same function in other slots, with a port that is up."""
    return tuple(
        one
        for one in among
        if hca.pci and one.pci and one.slot != hca.slot
        if one.pci[-1] == hca.pci[-1] and any(port.state == ACTIVE for port in one.ports)
    )


def _idle_twins(facts: RdmaFacts, used: tuple[Hca, ...]) -> str:
    idle = sorted({twin.name for hca in used for twin in _twins(hca, facts.hcas)} - {hca.name for hca in used})
    return f"; not used on the same cable: {', '.join(idle)} (fabric.hcas)" if idle else ""


def _name(hca: Hca) -> str:
    return f"{hca.name} ({', '.join(hca.interfaces)})" if hca.interfaces else hca.name
