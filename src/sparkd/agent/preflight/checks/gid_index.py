"""GID index: whether the plan pins the right entry of each RoCE port's table of addresses (GIDs)."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

from sparkd.agent.preflight.check import Check, Level, Verdict, block, combine_verdicts, ok, skipped
from sparkd.agent.preflight.checks.rdma import NAMES, Selection, select_ports, why_no_rdma
from sparkd.base.host import Host, infiniband
from sparkd.base.host.infiniband import ACTIVE, Gid
from sparkd.base.lib.text import sanitize
from sparkd.base.plan.inputs import CheckInputs
from sparkd.base.recipes.additions import parse_nccl_number

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
    env: Mapping[str, str]
    address: str
    """This node's address on the fabric. Its family, IPv4 or IPv6, is that of the GIDs."""
    not_needed: str = ""
    """Why the plan needs no RDMA; empty where it does."""
    id = "gid"
    levels = (Level.BLOCK,)

    @classmethod
    def from_inputs(cls, inputs: CheckInputs) -> GidIndex:
        return cls(dict(inputs.plan.env), inputs.plan.node.address, why_no_rdma(inputs.plan))

    def probe(self, host: Host) -> GidFacts:
        index = parse_nccl_number(self.env.get(INDEX, ""))
        if self.not_needed or index is None or index < 0:
            return GidFacts(())
        selected = select_ports(Selection.parse(self.env.get(NAMES, "")), infiniband.read_hcas(host.files))
        ports_up = ((hca.name, port.number) for hca, port in selected if port.ethernet and port.state == ACTIVE)
        tables = (self._build_table(index, *port, infiniband.read_gids(host.files, *port)) for port in ports_up)
        return GidFacts(tuple(tables))

    def judge(self, facts: GidFacts) -> Verdict:
        text = self.env.get(INDEX)
        if self.not_needed or text is None:
            return ok(self.not_needed or f"{INDEX} is unset, so NCCL finds the index itself")
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
        by_ipv6 = ":" in self.address
        usable = (gid for gid in gids if (not (gid.ipv4 or gid.link_local) if by_ipv6 else gid.ipv4))
        at_index = next((gid for gid in gids if gid.index == index), None)
        good = tuple(gid.index for gid in usable if gid.kind == infiniband.ROCE_V2)
        return GidTable(hca, port, at_index, good)

    def _describe_wrong(self, index: int, table: GidTable) -> Verdict:
        use = f"is {table.at_index.kind} {table.at_index.address}" if table.at_index else "is unused"
        remedy = f"the right index is {table.good[0]}" if table.good else "no index of it would do: has it an address?"
        return block(f"{INDEX}={index}: on {table.hca} that {use}; {remedy}", INDEX_HINT)
