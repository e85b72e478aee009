"""RDMA devices (HCAs) as /sys/class/infiniband shows them: ports, the interfaces they go by, and GIDs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from ipaddress import IPv6Address

from msgspec import Struct

from sparkd.host.files import Files
from sparkd.lib.text import sanitize

FOLDER = "/sys/class/infiniband"
LIMIT_BYTES = 4096
MAX_HCAS, MAX_PORTS, MAX_GIDS = 64, 16, 1024
"""What is read of a machine at most; a ConnectX-7 has one port an HCA and 256 places for GIDs."""
ROCE_V2 = "RoCE v2"
ACTIVE = "ACTIVE"


class Port(Struct, frozen=True):
    number: int
    state: str
    """`ACTIVE`, `DOWN`, `INIT`, `ARMED`."""
    ethernet: bool


class Hca(Struct, frozen=True):
    name: str
    interfaces: tuple[str, ...]
    pci: str
    """Address of its function, `0000:01:00.0`; empty for one made in software."""
    ports: tuple[Port, ...]

    @property
    def slot(self) -> str:
        """Functions of one slot share its lanes."""
        return self.pci.rpartition(".")[0]


class Gid(Struct, frozen=True):
    index: int
    kind: str
    """`RoCE v2` or `IB/RoCE v1`."""
    address: str
    """IPv4 where it stands for one."""
    ipv4: bool
    link_local: bool


def read(files: Files) -> tuple[Hca, ...]:
    """By name; none on a machine without RDMA."""
    return tuple(_hca(files, name) for name in names(files)[:MAX_HCAS])


def names(files: Files) -> tuple[str, ...]:
    return _names(files, FOLDER)


def interfaces(files: Files, hca: str) -> tuple[str, ...]:
    """By its device, or, for RDMA made in software, by the interface that it was made on."""
    found = _names(files, f"{FOLDER}/{hca}/device/net")
    with suppress(OSError):
        found = (*found, files.text(f"{FOLDER}/{hca}/parent", limit=LIMIT_BYTES).strip())
    return found


def chip(files: Files, hca: str) -> str:
    """The same for all devices of one chip, and for no others; empty where a device was given none."""
    said = files.text(f"{FOLDER}/{hca}/sys_image_guid", limit=LIMIT_BYTES).strip()
    return said if said.strip("0:") else ""


def gids(files: Files, hca: str, port: int) -> tuple[Gid, ...]:
    """Those in use, by index. Raises OSError where the table can't be read, and ValueError where it is none."""
    folder = f"{FOLDER}/{hca}/ports/{port}"
    indexes = sorted(int(name) for name in files.names(f"{folder}/gids") if name.isdecimal() and name.isascii())
    return tuple(_gids(files, folder, indexes[:MAX_GIDS]))


def _gids(files: Files, folder: str, indexes: list[int]) -> Iterator[Gid]:
    for index in indexes:
        raw = IPv6Address(files.text(f"{folder}/gids/{index}", limit=LIMIT_BYTES).strip())
        if not int(raw):
            continue
        try:
            kind = files.text(f"{folder}/gid_attrs/types/{index}", limit=LIMIT_BYTES).strip()
        except OSError:  # the kernel has given the place up meanwhile
            continue
        mapped = raw.ipv4_mapped
        yield Gid(index, sanitize(kind, 32), str(mapped or raw), mapped is not None, (mapped or raw).is_link_local)


def _hca(files: Files, name: str) -> Hca:
    try:
        pci = files.link(f"{FOLDER}/{name}/device").rpartition("/")[2]
    except OSError:
        pci = ""
    numbers = sorted(int(one) for one in _names(files, f"{FOLDER}/{name}/ports") if one.isdecimal() and one.isascii())
    ports = tuple(_port(files, name, number) for number in numbers[:MAX_PORTS])
    return Hca(name, interfaces(files, name), pci, ports)


def _port(files: Files, hca: str, number: int) -> Port:
    folder = f"{FOLDER}/{hca}/ports/{number}"
    state = files.text(f"{folder}/state", limit=LIMIT_BYTES).strip().rpartition(" ")[2]
    layer = files.text(f"{folder}/link_layer", limit=LIMIT_BYTES).strip()
    return Port(number, sanitize(state, 32), layer == "Ethernet")


def _names(files: Files, folder: str) -> tuple[str, ...]:
    try:
        return files.names(folder)
    except (FileNotFoundError, NotADirectoryError):  # no such device, or nothing of the kind on this machine
        return ()
