"""RDMA devices (HCAs) as /sys/class/infiniband shows them: ports, network interfaces, and GIDs."""

from collections.abc import Iterable
from contextlib import suppress
from ipaddress import IPv6Address

from msgspec import Struct

from sparkd.base.host import network
from sparkd.base.host.files import Files
from sparkd.base.lib.text import sanitize

FOLDER = "/sys/class/infiniband"
PCI = "/sys/bus/pci/devices"
CONNECTX = "0x15b3"
"""PCI vendor of each ConnectX card, which is shown whether its driver runs or not."""
MAX_HCAS, MAX_PORTS, MAX_GIDS = 64, 16, 1024
"""Limits of what is read; a ConnectX-7 has one port per HCA and 256 GIDs."""
ROCE_V2 = "RoCE v2"
ACTIVE = "ACTIVE"


class Port(Struct, frozen=True):
    number: int
    state: str
    ethernet: bool


class Hca(Struct, frozen=True):
    name: str
    interfaces: tuple[str, ...]
    pci: str
    """Address of its function, `0000:01:00.0`; empty for a software device."""
    ports: tuple[Port, ...]

    @property
    def slot(self) -> str:
        """The address without the function's number: the functions of one slot share its PCIe lanes."""
        return self.pci.rpartition(".")[0]


class Gid(Struct, frozen=True):
    index: int
    kind: str
    address: str
    """IPv4 where the GID maps one."""
    ipv4: bool
    link_local: bool


def read_hcas(files: Files) -> tuple[Hca, ...]:
    """All devices, sorted by name; empty on a machine without RDMA."""
    return tuple(_read_hca(files, name) for name in hca_names(files)[:MAX_HCAS])


def has_card(files: Files) -> bool:
    """Whether RDMA devices may still come up: the cards are there from the kernel's start."""
    for name in files.names_if_any(PCI):
        with suppress(OSError):
            if files.value(f"{PCI}/{name}/vendor") == CONNECTX:
                return True
    return bool(hca_names(files))


def hca_names(files: Files) -> tuple[str, ...]:
    return files.names_if_any(FOLDER)


def interfaces(files: Files, hca: str) -> tuple[str, ...]:
    """Network interfaces of an HCA's device, and the parent interface of a software device."""
    names = files.names_if_any(f"{FOLDER}/{hca}/device/net")
    with suppress(OSError):
        return *names, files.value(f"{FOLDER}/{hca}/parent")
    return names


def hcas_of(files: Files, interface: str) -> tuple[str, ...]:
    """RDMA devices of an interface, by name; for a bond or a VLAN, those of its lower interfaces.

    Behind them come the twins of the interface's own devices: a port of a DGX Spark's ConnectX-7 is two devices with
    four PCIe lanes each, and one alone gets half of the bandwidth (98 Gb/s, 161 with both: tonyd2wild (Vision), pull
    request 35).
    """
    if not interface:
        return ()
    try:
        wanted = {interface, *(name for link in network.read_links(files, interface) for name in link.lower)}
        names_by_hca = {hca: interfaces(files, hca) for hca in hca_names(files)}
    except (OSError, ValueError):  # the check of the fabric reports it
        return ()
    carriers = [hca for hca, names in names_by_hca.items() if not wanted.isdisjoint(names)]
    twins = [twin for hca in carriers if interface in names_by_hca[hca] for twin in _find_usable_twins(files, hca)]
    return tuple(dict.fromkeys([*carriers, *twins]))


def _find_usable_twins(files: Files, name: str) -> tuple[str, ...]:
    """Names of the twins that are up and have addresses of their own: NCCL fails on others."""
    try:
        device, *twins = find_twins(files, name)
        families = _read_families(files, device) if twins else set()
        return tuple(hca.name for hca in twins if families & _read_families(files, hca))
    except (OSError, ValueError):
        return ()


def find_twins(files: Files, name: str) -> tuple[Hca, ...]:
    """A device, then the others of the same port: on the same chip, with the same function number in another slot.

    Raises OSError, ValueError.
    """
    chip, hcas = _read_chip(files, name), read_hcas(files)
    (device,) = (hca for hca in hcas if hca.name == name)
    if not chip or not device.pci:
        return (device,)
    same_function = [hca for hca in hcas if hca.slot != device.slot and hca.pci[-1:] == device.pci[-1:]]
    return (device, *(hca for hca in same_function if _read_chip(files, hca.name) == chip))


def _read_families(files: Files, hca: Hca) -> set[bool]:
    """Families of the routable RoCE v2 addresses of its active ports: True for IPv4, False for IPv6."""
    active = (port.number for port in hca.ports if port.state == ACTIVE)
    gids = (gid for number in active for gid in read_gids(files, hca.name, number))
    return {gid.ipv4 for gid in gids if gid.kind == ROCE_V2 and not gid.link_local}


def _read_chip(files: Files, hca: str) -> str:
    """An id that all devices of one chip share; empty where a device has none."""
    guid = files.value(f"{FOLDER}/{hca}/sys_image_guid")
    return guid if guid.strip("0:") else ""


def read_gids(files: Files, hca: str, port: int) -> tuple[Gid, ...]:
    """The GIDs in use, by index. Raises OSError, and ValueError for another format."""
    folder = f"{FOLDER}/{hca}/ports/{port}"
    gids = []
    for index in _sort_numbers(files.names(f"{folder}/gids"))[:MAX_GIDS]:
        raw = IPv6Address(files.value(f"{folder}/gids/{index}"))
        if not int(raw):
            continue
        address = raw.ipv4_mapped or raw
        with suppress(OSError):  # removed meanwhile
            kind = sanitize(files.value(f"{folder}/gid_attrs/types/{index}"), 32)
            gids.append(Gid(index, kind, str(address), raw.ipv4_mapped is not None, address.is_link_local))
    return tuple(gids)


def _read_hca(files: Files, name: str) -> Hca:
    try:
        pci = files.link(f"{FOLDER}/{name}/device").rpartition("/")[2]
    except OSError:
        pci = ""
    folder, ports = f"{FOLDER}/{name}/ports", []
    for number in _sort_numbers(files.names_if_any(folder))[:MAX_PORTS]:
        state = files.value(f"{folder}/{number}/state").rpartition(" ")[2]
        ports.append(Port(number, sanitize(state, 32), files.value(f"{folder}/{number}/link_layer") == "Ethernet"))
    return Hca(name, interfaces(files, name), pci, tuple(ports))


def _sort_numbers(names: Iterable[str]) -> list[int]:
    return sorted(int(name) for name in names if name.isdecimal() and name.isascii())
