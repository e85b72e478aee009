"""The wires of a bed: two bridges in its own network namespace, and two cards in each node.

Management is enP7s7 on 192.168.1.0/24, where the test client is .1; the fabric is enp1s0f0np0 on 10.0.0.0/24.
Runs inside the space. A node whose cable is cut is plugged in without carrier.
"""

from dataclasses import dataclass
from pathlib import Path

from .command import Argument, run

CLIENT = "192.168.1.1"
MANAGEMENT_CARD, FABRIC_CARD = "enP7s7", "enp1s0f0np0"
FABRIC_MTU = 9000
CUT = Path("/run/bed/cut")
"""A folder in here for each node whose cable is cut: its index."""


@dataclass(frozen=True)
class Addresses:
    """Of the node with this index, from 1."""

    index: int

    @property
    def management(self) -> str:
        return f"192.168.1.{10 + self.index}"

    @property
    def fabric(self) -> str:
        return f"10.0.0.{self.index}"

    def mac(self, card: int) -> str:
        return f"3c:6d:66:11:{card:02x}:{self.index:02x}"


def fabric_port(index: int) -> str:
    """The bed's end of a node's cable."""
    return f"fabr{index}"


def management_port(index: int) -> str:
    return f"mana{index}"


def lay() -> None:
    """The bridges, once for each bed."""
    for bridge, mtu in (("management", 1500), ("fabric", FABRIC_MTU)):
        run("ip", "link", "add", bridge, "mtu", str(mtu), "type", "bridge")
        run("ip", "link", "set", bridge, "up")
    run("ip", "address", "add", f"{CLIENT}/24", "dev", "management")


def plug(addresses: Addresses) -> None:
    """Both cards, new, into the namespace of the caller: down and unconfigured, as after power on."""
    cards = (
        (MANAGEMENT_CARD, management_port(addresses.index), "management", 1500),
        (FABRIC_CARD, fabric_port(addresses.index), "fabric", FABRIC_MTU),
    )
    for number, (card, port, bridge, mtu) in enumerate(cards):
        in_space("ip", "link", "delete", port, check=False)  # of the last power-on: its namespace dies lazily
        peer = ("peer", "name", port, "mtu", str(mtu), "netns", "1")
        run("ip", "link", "add", card, "address", addresses.mac(number), "type", "veth", *peer)
        in_space("ip", "link", "set", port, "master", bridge)
    in_space("ip", "link", "set", management_port(addresses.index), "up")
    carry(addresses.index)


def carry(index: int) -> None:
    """The fabric's cable as it is noted: who cuts or restores it meanwhile notes that first, and then sets it too."""
    cut = None
    while cut != (noted := (CUT / str(index)).exists()):
        cut = noted
        in_space("ip", "link", "set", fabric_port(index), "down" if cut else "up")


def in_space(*argv: Argument, check: bool = True) -> None:
    """In the network of PID 1, the keeper."""
    run("nsenter", "-t", "1", "-n", "--", *argv, check=check)


if __name__ == "__main__":
    lay()
