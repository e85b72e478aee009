"""GID: the entry of a RoCE port's table that the plan pins."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

from sparkd.host import Host, infiniband
from sparkd.host.infiniband import ACTIVE, Gid
from sparkd.lib.text import sanitize
from sparkd.preflight.check import Check, Level, Verdict, block, ok, verdict
from sparkd.preflight.checks.rdma import NAMES, Selection, select_ports, why_no_rdma
from sparkd.preflight.inputs import CheckInputs
from sparkd.recipes.additions import parse_number

INDEX = "NCCL_IB_GID_INDEX"
HINT = f"take {INDEX} out of [engine.env] or the recipe: NCCL finds the index by itself on each device"


class GidTable(Struct, frozen=True):
    """Of one selected port that is up."""

    hca: str
    port: int
    at_index: Gid | None
    good: tuple[int, ...]


class GidFacts(Struct, frozen=True):
    tables: tuple[GidTable, ...]


class GidIndex(Check[GidFacts], frozen=True):
    env: Mapping[str, str]
    address: str
    """Of this node on the fabric: its family is that of the GIDs."""
    not_needed: str = ""
    id = "gid"
    levels = (Level.BLOCK,)

    @classmethod
    def from_inputs(cls, inputs: CheckInputs) -> GidIndex:
        return cls(dict(inputs.plan.env), inputs.plan.node.address, why_no_rdma(inputs.plan))

    def probe(self, host: Host) -> GidFacts:
        index = parse_number(self.env.get(INDEX, ""))
        if self.not_needed or index is None or index < 0:
            return GidFacts(())
        used = select_ports(Selection.parse(self.env.get(NAMES, "")), infiniband.read_hcas(host.files))
        up = ((hca.name, port.number) for hca, port in used if port.ethernet and port.state == ACTIVE)
        return GidFacts(tuple(self._table(index, *one, infiniband.read_gids(host.files, *one)) for one in up))

    def judge(self, facts: GidFacts) -> Verdict:
        text = self.env.get(INDEX)
        if self.not_needed or text is None:
            return ok(self.not_needed or f"{INDEX} is unset, so NCCL finds the index itself")
        if not text.strip():
            return block(f"{INDEX} is empty, which acts as 0: a link-local address", HINT)
        if (index := parse_number(text)) is None:
            return block(f"{INDEX} is {sanitize(text)!r}, which is no index", HINT)
        if index < 0:
            return ok(f"{INDEX} is {index}, so NCCL finds the index itself")
        problems = [self._wrong(index, one) for one in facts.tables if index not in one.good]
        where = ", ".join(one.hca for one in facts.tables)
        return verdict(problems, f"index {index} is right on {where}" if where else "no port is up")

    def _table(self, index: int, hca: str, port: int, gids: tuple[Gid, ...]) -> GidTable:
        six = ":" in self.address
        of_family = (one for one in gids if (not (one.ipv4 or one.link_local) if six else one.ipv4))
        at_index = next((one for one in gids if one.index == index), None)
        good = tuple(one.index for one in of_family if one.kind == infiniband.ROCE_V2)
        return GidTable(hca, port, at_index, good)

    def _wrong(self, index: int, table: GidTable) -> Verdict:
        found = f"is {table.at_index.kind} {table.at_index.address}" if table.at_index else "is unused"
        right = f"the right index is {table.good[0]}" if table.good else "no index of it would do: has it an address?"
        return block(f"{INDEX}={index}: on {table.hca} that {found}; {right}", HINT)
