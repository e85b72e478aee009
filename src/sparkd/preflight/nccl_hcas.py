"""Which RDMA devices NCCL will use, as it reads its own environment (NCCL, src/transport/net_ib)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from msgspec import Struct

from sparkd.host.infiniband import Hca, Port

NAMES = "NCCL_IB_HCA"
VERBS = "/dev/infiniband"
_NUMBER = re.compile(r"\s*([+-]?)(?:0[xX]([0-9a-fA-F]{1,32})|(0[0-7]{0,32})|([1-9][0-9]{0,32}))")


def number(text: str) -> int | None:
    """A parameter as NCCL reads it (src/misc/param.cc): strtoll with base 0, so that 0x3 and 03 are 3, and 010 is 8.

    What follows the number is not heeded. None where there is none, or one of more than 64 bits: older versions take
    it for 0, newer ones for unset.
    """
    found = _NUMBER.match(text)
    if found is None:
        return None
    sign, hexadecimal, octal, decimal = found.groups()
    value = int(hexadecimal, 16) if hexadecimal else int(octal, 8) if octal else int(decimal)
    if value >= 1 << 63:
        return None
    return -value if sign == "-" else value


def by_tcp(env: Mapping[str, str]) -> str:
    """What tells NCCL to go by TCP; empty where nothing does."""
    if number(env.get("NCCL_IB_DISABLE", "")):
        return "NCCL_IB_DISABLE is set, so NCCL goes by TCP"
    return "NCCL_NET is Socket, so NCCL goes by TCP" if env.get("NCCL_NET", "").lower() == "socket" else ""


class Selection(Struct, frozen=True):
    """NCCL_IB_HCA: `rocep1s0f0,mlx5_1:1` are beginnings of names, each with a port where one is meant; a leading `=`
    means whole names, a leading `^` all others. Empty: every device.
    """

    names: tuple[tuple[str, int | None], ...]
    exact: bool
    others: bool

    @classmethod
    def of(cls, text: str) -> Selection:
        others = text.startswith("^")
        rest = text.removeprefix("^")
        exact = rest.startswith("=")
        words = rest.removeprefix("=").split(",")
        return cls(tuple(_name_and_port(word) for word in words if word), exact, others)

    def takes(self, hca: str, port: int) -> bool:
        among = (self._matches(name, hca) and number in (None, port) for name, number in self.names)
        return (not self.names or any(among)) is not self.others

    def names_whole(self, hca: str) -> bool:
        """Whether it is meant by its own name, rather than as one of all that there are."""
        return not self.others and any(name == hca for name, _ in self.names)

    def missing(self, present: Iterable[str]) -> tuple[str, ...]:
        """Names to use that no device here has."""
        known = tuple(present)
        if self.others:
            return ()
        return tuple(name for name, _ in self.names if not any(self._matches(name, hca) for hca in known))

    def _matches(self, name: str, hca: str) -> bool:
        return hca == name if self.exact else hca.startswith(name)


def selected(selection: Selection, hcas: Iterable[Hca]) -> tuple[tuple[Hca, Port], ...]:
    """Devices with the ports that are to be used, whether those are up or not."""
    return tuple((hca, port) for hca in hcas for port in hca.ports if selection.takes(hca.name, port.number))


def _name_and_port(word: str) -> tuple[str, int | None]:
    name, _, port = word.partition(":")
    return name, int(port) if port.isdecimal() and port.isascii() else None
