"""RDMA: the devices that NCCL will use between the nodes, and the GID index that the plan pins on them."""

from collections.abc import Iterable, Iterator

from msgspec import Struct
from msgspec.structs import replace

from sparkd.agent.preflight.check import Check, Level, Verdict, block, combine_verdicts, ok, skipped, warn
from sparkd.base.config import Settings
from sparkd.base.host import Host, infiniband, network
from sparkd.base.host.infiniband import ACTIVE, Gid, Hca, Port
from sparkd.base.lib.text import sanitize
from sparkd.base.plan.model import LaunchPlan
from sparkd.base.recipes.additions import VERBS, parse_nccl_number, why_tcp
from sparkd.base.recipes.schema import Container

NAMES = "NCCL_IB_HCA"
BY_RDMA, BY_TCP = "rdma", "tcp"
AWAITED = "RDMA devices"
TCP_COST = "so NCCL goes by TCP, slower than the 98 Gb/s of one device and the 161 of both"
"""Measured in pull request 35 of tonyd2wild (Vision)."""
CABLE = "is its cable in, and the node at the other end on? ip -brief link"
TCP_HINT = 'where TCP is meant, NCCL_IB_DISABLE = "1" under [engine.env] saves the wait'


def why_no_rdma(plan: LaunchPlan) -> str:
    """Why the plan needs no RDMA; empty where it does."""
    if plan.node.cluster_size == 1:
        return "one node"
    return why_tcp(dict(plan.env)) if plan.container.gpus == "all" else "the plan uses no GPU"


def reaches_verbs(container: Container) -> bool:
    return container.privileged or any(device.startswith(VERBS) for device in container.devices)


class Selection(Struct, frozen=True):
    """A value of NCCL_IB_HCA, such as `rocep1s0f0,mlx5_1:1`: beginnings of devices' names, with or without a port.

    A leading `=` means whole names, a leading `^` all other devices. An empty value selects every device.
    """

    names: tuple[tuple[str, int | None], ...]
    exact: bool
    others: bool

    @classmethod
    def parse(cls, text: str) -> "Selection":
        others = text.startswith("^")
        selection = text.removeprefix("^")
        exact = selection.startswith("=")
        words = selection.removeprefix("=").split(",")
        pairs = (word.partition(":")[::2] for word in words if word)
        names = ((name, int(port) if port.isdecimal() and port.isascii() else None) for name, port in pairs)
        return cls(tuple(names), exact, others)

    def takes(self, hca: str, port: int) -> bool:
        matches = (self._matches(name, hca) and number in (None, port) for name, number in self.names)
        return (not self.names or any(matches)) is not self.others

    def missing(self, present: tuple[str, ...]) -> tuple[str, ...]:
        """Selected names that match none of these devices."""
        names = () if self.others else self.names
        return tuple(name for name, _ in names if not any(self._matches(name, hca) for hca in present))

    def _matches(self, name: str, hca: str) -> bool:
        return hca == name if self.exact else hca.startswith(name)


def select_ports(selection: Selection, hcas: Iterable[Hca]) -> tuple[tuple[Hca, Port], ...]:
    """The selected ports with their devices, up or not."""
    return tuple((hca, port) for hca in hcas for port in hca.ports if selection.takes(hca.name, port.number))


class RdmaFacts(Struct, frozen=True):
    hcas: tuple[Hca, ...]
    no_carrier: tuple[str, ...]
    """The devices' interfaces that have no carrier."""
    on_fabric: bool = True
    """Whether the fabric's interface has an RDMA device; true where that does not matter."""
    has_card: bool = True
    """Whether there is a card, so that its devices may still come."""

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(hca.name for hca in self.hcas)

    @property
    def device_hint(self) -> str:
        """The beginning of a hint: the devices to choose from."""
        return f"this machine has {', '.join(self.names)}" if self.hcas else "look at: rdma link; lspci; sudo dmesg"


class Rdma(Check[RdmaFacts], frozen=True):
    plan: LaunchPlan
    settings: Settings
    id = "rdma"
    levels = (Level.WARN, Level.BLOCK)

    @property
    def interface(self) -> str:
        """The fabric's interface, where its devices are wanted; empty where they aren't, or fabric.hcas names some."""
        return self.plan.node.interface if self.plan.insists_on_hcas and not self.settings.fabric.hcas else ""

    @property
    def forbids_tcp(self) -> bool:
        """Whether NCCL fails without RDMA."""
        return dict(self.plan.env).get("NCCL_NET", "").upper() == "IB"

    @property
    def selection(self) -> Selection:
        return Selection.parse(dict(self.plan.env).get(NAMES, ""))

    def probe(self, host: Host) -> RdmaFacts:
        if why_no_rdma(self.plan):
            return RdmaFacts((), ())
        hcas = infiniband.read_hcas(host.files)
        names = dict.fromkeys(name for hca in hcas for name in hca.interfaces)
        links = (network.read_link(host.files, name) for name in names)
        no_carrier = tuple(link.name for link in links if link is not None and link.carrier is not True)
        on_fabric = not self.interface or bool(infiniband.hcas_of(host.files, self.interface))
        return RdmaFacts(hcas, no_carrier, on_fabric, infiniband.has_card(host.files))

    def transport(self, facts: RdmaFacts) -> str:
        """What NCCL can use on this node; empty where it needs no network."""
        if why_no_rdma(self.plan):
            return ""
        is_usable = reaches_verbs(self.plan.container) and self._has_port_up(facts)
        return BY_RDMA if is_usable or self.forbids_tcp else BY_TCP

    def _has_port_up(self, facts: RdmaFacts) -> bool:
        selected = select_ports(self.selection, facts.hcas)
        return facts.on_fabric and any(port.state == ACTIVE for _, port in selected)

    def judge(self, facts: RdmaFacts) -> Verdict:
        if not_needed := why_no_rdma(self.plan):
            return ok(not_needed)
        meant_ports = _list_meant_ports(self.selection, facts.hcas)
        meant_hcas = tuple(dict.fromkeys(hca for hca, _ in meant_ports))
        has_port_up = self._has_port_up(facts)
        problems = [*self._judge_missing(facts)] if has_port_up else [self._judge_none(facts, meant_hcas)]
        problems += _judge_shared_lanes(facts, meant_hcas)
        problems += [_describe_down(hca, port, facts) for hca, port in meant_ports if port.state != ACTIVE]
        if not reaches_verbs(self.plan.container):
            reason = f"the container is given no {VERBS}, {TCP_COST}"
            problems.append(warn(reason, f"put {VERBS} among its devices: container.devices of the recipe"))
        names = ", ".join(_format_name(hca) for hca in meant_hcas)
        verdict = combine_verdicts(problems, f"{names}: ACTIVE{_describe_idle_twins(facts, meant_hcas)}")
        return verdict if has_port_up or not facts.has_card else replace(verdict, awaits=AWAITED)

    def _judge_missing(self, facts: RdmaFacts) -> Iterator[Verdict]:
        planned = (name for name in self.plan.node.hcas if name not in facts.names)
        names = dict.fromkeys((*self.selection.missing(facts.names), *planned))
        if names:
            reason = f"no RDMA device is called {', '.join(names)}, which the plan names"
            yield warn(reason, f"{facts.device_hint}: correct fabric.hcas or {NAMES}")

    def _judge_none(self, facts: RdmaFacts, meant: tuple[Hca, ...]) -> Verdict:
        """Judge a node none of whose selected ports is up."""
        reason, hint = "this machine has no RDMA device", facts.device_hint
        if facts.hcas and not facts.on_fabric:
            reason, hint = f"{self.interface} has no RDMA device", f"{hint}: set fabric.hcas, or {NAMES}: null"
        elif meant:
            reason, hint = "no RDMA device is up", CABLE
        elif facts.hcas:
            reason = f"{NAMES}={sanitize(dict(self.plan.env).get(NAMES, ''))} selects no RDMA device of this machine"
        if self.forbids_tcp:
            return block(f"{reason}, and NCCL_NET=IB insists on one", hint)
        return warn(f"{reason}, {TCP_COST}", f"{hint}; {TCP_HINT}" if facts.has_card else hint)


def _list_meant_ports(selection: Selection, hcas: Iterable[Hca]) -> list[tuple[Hca, Port]]:
    """The selected ports that are meant to be up: half of those of a DGX Spark have no cable.

    Devices that are not selected by name are meant only where they are up, unless none is.
    """
    ports = select_ports(selection, hcas)
    hcas_up = {hca for hca, port in ports if port.state == ACTIVE}
    selected_names = {name for name, _ in selection.names if not selection.others}
    return [(hca, port) for hca, port in ports if not hcas_up or hca in hcas_up or hca.name in selected_names]


def _describe_down(hca: Hca, port: Port, facts: RdmaFacts) -> Verdict:
    interfaces = ", ".join(name for name in hca.interfaces if name in facts.no_carrier)
    cause = f"; {interfaces} has no carrier" if interfaces else ""
    reason = f"{_format_name(hca)}: port {port.number} is {port.state}{cause}"
    return warn(reason, f"{CABLE}; else leave it out of fabric.hcas")


def _judge_shared_lanes(facts: RdmaFacts, meant: tuple[Hca, ...]) -> Iterator[Verdict]:
    """Warn where all devices in use share one PCI slot, while twins in another slot could carry half of the traffic."""
    twins = [twin for hca in meant for twin in _find_twins(hca, facts.hcas)]
    if len(meant) > 1 and twins and len({hca.slot for hca in meant}) == 1:
        reason = f"{' and '.join(hca.name for hca in meant)} share the lanes of one slot ({meant[0].slot})"
        yield warn(reason, f"one cable is the same port on both PCI domains: {meant[0].name},{twins[0].name}")


def _find_twins(hca: Hca, hcas: tuple[Hca, ...]) -> tuple[Hca, ...]:
    """Devices of the same PCI function in other slots, with a port that is up: the same port of the card."""
    return tuple(
        other
        for other in hcas
        if hca.pci and other.pci and other.slot != hca.slot
        if other.pci[-1] == hca.pci[-1] and any(port.state == ACTIVE for port in other.ports)
    )


def _describe_idle_twins(facts: RdmaFacts, meant: tuple[Hca, ...]) -> str:
    twin_names = {twin.name for hca in meant for twin in _find_twins(hca, facts.hcas)}
    idle_names = sorted(twin_names - {hca.name for hca in meant})
    return f"; not used on the same cable: {', '.join(idle_names)} (fabric.hcas)" if idle_names else ""


def _format_name(hca: Hca) -> str:
    return f"{hca.name} ({', '.join(hca.interfaces)})" if hca.interfaces else hca.name


INDEX = "NCCL_IB_GID_INDEX"
INDEX_HINT = f"take {INDEX} out of [engine.env] or the recipe: NCCL finds the index by itself on each device"


class GidTable(Struct, frozen=True):
    """The table of one selected port that is up."""

    hca: str
    port: int
    at_index: Gid | None
    """The entry that the plan pins; None where it is unused."""
    good: tuple[int, ...]
    """Indexes that would do."""


class GidFacts(Struct, frozen=True):
    tables: tuple[GidTable, ...]


class GidIndex(Check[GidFacts], frozen=True):
    """Whether the plan pins the right entry of each RoCE port's table of addresses (GIDs)."""

    plan: LaunchPlan
    id = "gid"
    levels = (Level.BLOCK,)

    def probe(self, host: Host) -> GidFacts:
        env = dict(self.plan.env)
        index = parse_nccl_number(env.get(INDEX, ""))
        if why_no_rdma(self.plan) or index is None or index < 0:
            return GidFacts(())
        selected = select_ports(Selection.parse(env.get(NAMES, "")), infiniband.read_hcas(host.files))
        ports_up = ((hca.name, port.number) for hca, port in selected if port.ethernet and port.state == ACTIVE)
        tables = (self._build_table(index, *port, infiniband.read_gids(host.files, *port)) for port in ports_up)
        return GidFacts(tuple(tables))

    def judge(self, facts: GidFacts) -> Verdict:
        if not_needed := why_no_rdma(self.plan):
            return ok(not_needed)
        text = dict(self.plan.env).get(INDEX)
        if text is None:
            return ok(f"{INDEX} is unset, so NCCL finds the index itself")
        if not text.strip():
            return block(f"{INDEX} is empty, which acts as 0: a link-local address", INDEX_HINT)
        if (index := parse_nccl_number(text)) is None:
            return block(f"{INDEX} is {sanitize(text)!r}, which is no index", INDEX_HINT)
        if index < 0:
            return ok(f"{INDEX} is {index}, so NCCL finds the index itself")
        if not facts.tables:
            return skipped("not judged: no port is up")
        problems = [self._describe_wrong(index, table) for table in facts.tables if index not in table.good]
        devices = ", ".join(table.hca for table in facts.tables)
        return combine_verdicts(problems, f"index {index} is right on {devices}")

    def _build_table(self, index: int, hca: str, port: int, gids: tuple[Gid, ...]) -> GidTable:
        by_ipv6 = ":" in self.plan.node.address  # GIDs of the same family are usable
        usable = (gid for gid in gids if (not (gid.ipv4 or gid.link_local) if by_ipv6 else gid.ipv4))
        at_index = next((gid for gid in gids if gid.index == index), None)
        good = tuple(gid.index for gid in usable if gid.kind == infiniband.ROCE_V2)
        return GidTable(hca, port, at_index, good)

    def _describe_wrong(self, index: int, table: GidTable) -> Verdict:
        use = f"is {table.at_index.kind} {table.at_index.address}" if table.at_index else "is unused"
        remedy = f"the right index is {table.good[0]}" if table.good else "no index of it would do: has it an address?"
        return block(f"{INDEX}={index}: on {table.hca} that {use}; {remedy}", INDEX_HINT)
