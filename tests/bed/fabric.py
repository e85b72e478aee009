"""Faults of the fabric: a cable without carrier, a cable that swallows, a cable that loses.

All of it is on the bed's side of the cable, so that a fault outlives a reboot of the node, as in life.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from . import registry
from .command import BedError
from .network import CUT, fabric_port
from .space import Space

EVERYTHING = 100


@dataclass(frozen=True)
class Fabric:
    """One node's end of it. With two nodes in the bed it is a cable: what is cut at one end is cut at both."""

    bed: str
    index: int
    space: Space

    def cut(self) -> None:
        """No carrier, and no address either: networkd takes it away."""
        for index in self._ends():
            self.space.run("mkdir", "-p", CUT / str(index))
            self._set(index, "down")

    def restore(self) -> None:
        for index in self._ends():
            self.space.run("rm", "-rf", CUT / str(index))
            self._set(index, "up")

    def blackhole(self) -> None:
        """Carrier stays, and nothing passes."""
        self.lose(EVERYTHING)

    def swallow(self, way: str) -> None:
        """Of one direction: `oifname`, what is sent to the node; `iifname`, what it sends."""
        self._drop("", way)

    def lose(self, percent: int) -> None:
        """This share of the frames each way, at random: a ping there and back is lost more often than that."""
        if not 0 < percent <= EVERYTHING:
            raise BedError(f"{percent} % can't be lost: 1 to {EVERYTHING}")
        self._drop("" if percent == EVERYTHING else f"numgen random mod 100 < {percent} ")

    def slow(self, mbytes_per_second: int) -> None:
        """No more than this each way; what is over is lost, as by a switch."""
        self._drop(f"limit rate over {mbytes_per_second} mbytes/second burst 2 mbytes ")

    def _drop(self, which: str, *ways: str) -> None:
        """In the directions `ways`; in both where none is named."""
        port = fabric_port(self.index)
        rules = [f'add rule bridge {port} forward {way} "{port}" {which}drop' for way in ways or ("iifname", "oifname")]
        chain = f"add chain bridge {port} forward {{ type filter hook forward priority 0; }}"
        self.space.run("nft", "; ".join([self._no_table(), f"add table bridge {port}", chain, *rules]))

    def clear(self) -> None:
        """As new."""
        self.space.run("nft", self._no_table())
        self.restore()

    def _no_table(self) -> str:
        table = f"table bridge {fabric_port(self.index)}"
        return f"add {table}; delete {table}"

    def _ends(self) -> Sequence[int]:
        nodes = [int(name.removeprefix("spark")) for name in registry.nodes_of(self.bed)]
        return nodes if len(nodes) == 2 else [self.index]

    def _set(self, index: int, state: str) -> None:
        """Of a node that is off there is nothing to set: it is plugged in by what is noted."""
        port = fabric_port(index)
        if self.space.run("ip", "link", "show", port, check=False).returncode == 0:
            self.space.run("ip", "link", "set", port, state)
