"""NCCL_IB_GID_INDEX: a pinned index must be right on every RDMA device at this moment."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar

from msgspec import Struct

from sparkd.host import infiniband
from sparkd.lib.text import sanitize
from sparkd.preflight import nccl_hcas
from sparkd.preflight.check import About, Check, Level, Verdict
from sparkd.preflight.nccl_hcas import Selection
from sparkd.preflight.problems import Problem, verdict

if TYPE_CHECKING:
    from sparkd.host import Host
    from sparkd.host.infiniband import Gid

INDEX = "NCCL_IB_GID_INDEX"
HINT = f"take {INDEX} out of [engine.env] or the recipe: NCCL finds the index by itself on each device"


class GidTable(Struct, frozen=True):
    """Of one port that is to be used and is up."""

    hca: str
    port: int
    at_index: Gid | None
    """What stands at the pinned index; None where nothing does."""
    good: tuple[int, ...]
    """Indexes that would do."""


class GidFacts(Struct, frozen=True):
    tables: tuple[GidTable, ...]


class GidIndex(Check[GidFacts], frozen=True):
    """Indexes move when addresses come and go, and differ between devices: unset is best."""

    env: Mapping[str, str]
    address: str
    """Of this node on the fabric: its family is that of the GIDs."""
    not_needed: str = ""
    """Why the plan needs no RDMA; empty where it does."""
    id: ClassVar[str] = "gid"
    about: ClassVar[About] = About(
        levels=(Level.BLOCK,),
        reads="/sys/class/infiniband/*/ports/*/{gids,gid_attrs/types}, where the plan pins an index",
        source="tonyd2wild (Vision), issue 38 and pull request 40: the index drifts, and an empty text means 0",
        page="""\
RoCE addresses a port by one entry of its GID table. The right one is of type RoCE v2 and stands for the IPv4 address of
the interface (::ffff:10.0.0.1). Its index is often 3, but 4 and 5 are seen too, it differs between devices and nodes,
and it moves when an address comes or goes: 3 became 4 within half an hour on one pair. NCCL finds it by itself on every
device where NCCL_IB_GID_INDEX is unset (NCCL_IB_ADDR_FAMILY=AF_INET, NCCL_IB_ROCE_VERSION_NUM=2 tell it how).

  block    the plan sets NCCL_IB_GID_INDEX to an empty text, which was seen to act as 0, a link-local address; or to
           what is no number, which older versions read as 0; or to an index that is not RoCE v2 with an address of the
           fabric's family on every device that NCCL_IB_HCA selects. The reason names the right index of each device.

With a wrong index the ranks meet over TCP and then hang or fail in their first collective. Ports that are not ACTIVE,
which NCCL leaves out, are not asked. A negative number is the same as unset. NCCL reads 0x3 as 3, and 010 as 8.""",
    )

    def probe(self, host: Host) -> GidFacts:
        index = self._pinned()
        if self.not_needed or index is None:
            return GidFacts(())
        selection = Selection.of(self.env.get(nccl_hcas.NAMES, ""))
        used = nccl_hcas.selected(selection, infiniband.read(host.files))
        return GidFacts(
            tuple(
                self._table(index, hca.name, port.number, infiniband.gids(host.files, hca.name, port.number))
                for hca, port in used
                if port.ethernet and port.state == "ACTIVE"
            )
        )

    def judge(self, facts: GidFacts) -> Verdict:
        text = self.env.get(INDEX)
        if self.not_needed or text is None:
            return Verdict(Level.OK, self.not_needed or f"{INDEX} is unset, so NCCL finds the index itself")
        if not text.strip():
            return Verdict(Level.BLOCK, f"{INDEX} is empty, which acts as 0: a link-local address", HINT)
        index = nccl_hcas.number(text)
        if index is not None and index < 0:
            return Verdict(Level.OK, f"{INDEX} is {index}, so NCCL finds the index itself")
        if index is None:
            return Verdict(Level.BLOCK, f"{INDEX} is {sanitize(text)!r}, which is no index", HINT)
        problems = [self._wrong(index, one) for one in facts.tables if index not in one.good]
        where = ", ".join(one.hca for one in facts.tables)
        return verdict(problems, f"index {index} is right on {where}" if where else "no port is up to be asked")

    def _pinned(self) -> int | None:
        index = nccl_hcas.number(self.env.get(INDEX, ""))
        return index if index is not None and index >= 0 else None

    def _table(self, index: int, hca: str, port: int, gids: tuple[Gid, ...]) -> GidTable:
        at_index = next((one for one in gids if one.index == index), None)
        return GidTable(hca, port, at_index, tuple(one.index for one in gids if self._good(one)))

    def _good(self, gid: Gid) -> bool:
        of_family = not (gid.ipv4 or gid.link_local) if ":" in self.address else gid.ipv4
        return gid.kind == infiniband.ROCE_V2 and of_family

    def _wrong(self, index: int, table: GidTable) -> Problem:
        found = f"is {table.at_index.kind} {table.at_index.address}" if table.at_index else "is unused"
        right = f"the right index is {table.good[0]}" if table.good else "no index of it would do: has it an address?"
        return Problem(Level.BLOCK, f"{INDEX}={index}: on {table.hca} that {found}; {right}", HINT)
