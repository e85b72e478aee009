"""The fabric as the kernel shows it: which interface carries an address, which RDMA devices belong to an interface."""

from __future__ import annotations

from collections.abc import Iterator
from ipaddress import IPv4Address, IPv6Address, ip_address

from sparkd.host import addresses, infiniband, links
from sparkd.host.files import Files
from sparkd.host.infiniband import Hca

UP, GATEWAY, REJECT = 0x0001, 0x0002, 0x0200
"""RTF_UP, RTF_GATEWAY and RTF_REJECT of linux/route.h."""


def interface_of(files: Files, address: str) -> str:
    """The network interface that carries one of this machine's addresses; empty where that can't be told.

    Two interfaces on one subnet can't be told apart, and nothing is guessed.
    """
    found = interfaces_of(files, address)
    return found[0] if len(found) == 1 else ""


def interfaces_of(files: Files, address: str) -> tuple[str, ...]:
    """Every interface that may carry one of this machine's addresses, by name.

    IPv4 is told by the subnet in the main table, where the kernel puts it by itself: rules that prefer other tables
    change nothing.
    """
    wanted = ip_address(addresses.canonical(address))
    try:
        if isinstance(wanted, IPv6Address):
            found = set(_ipv6(files.text("/proc/net/if_inet6"), wanted))
        else:
            found = _narrowest(_subnets(files.text("/proc/net/route"), wanted))
    except OSError:
        return ()
    return tuple(sorted(found))


def hcas_of(files: Files, interface: str) -> tuple[str, ...]:
    """RDMA devices of an interface, by name: of a bond or a VLAN, those of the interfaces below it.

    Each is followed by its twins. A port of a DGX Spark's ConnectX-7 is two devices, with four lanes of PCIe each, so
    that one alone is half of the cable (98 Gb/s, and 161 with both: tonyd2wild (Vision), pull request 35).
    """
    if not interface:
        return ()
    try:
        wanted = {interface, *(name for link in links.with_lower(files, interface) for name in link.lower)}
        carried = {hca: set(infiniband.interfaces(files, hca)) for hca in infiniband.names(files)}
    except (OSError, ValueError):  # the check of the fabric says why
        return ()
    found = [hca for hca, names in carried.items() if wanted & names]
    twins = [twin for hca in found if interface in carried[hca] for twin in _twins(files, hca)]
    return tuple(dict.fromkeys([*found, *twins]))


def _twins(files: Files, name: str) -> tuple[str, ...]:
    """Other devices of the same port: of one chip, and the same function of another slot.

    Only those that are up and have addresses of their own on the fabric, or NCCL would fail on them.
    """
    try:
        chip, known = infiniband.chip(files, name), infiniband.read(files)
        (own,) = (hca for hca in known if hca.name == name)
        if not chip or not own.pci:
            return ()
        alike = [hca for hca in known if hca.slot != own.slot and hca.pci[-1:] == own.pci[-1:]]
        twins = [hca for hca in alike if infiniband.chip(files, hca.name) == chip]
        families = _families(files, own) if twins else set()
        return tuple(hca.name for hca in twins if families & _families(files, hca))
    except (OSError, ValueError):
        return ()


def _families(files: Files, hca: Hca) -> set[bool]:
    """Whether IPv4, and whether not, among the addresses at which its ports that are up can be reached."""
    up = (port.number for port in hca.ports if port.state == infiniband.ACTIVE)
    gids = (gid for number in up for gid in infiniband.gids(files, hca.name, number))
    return {gid.ipv4 for gid in gids if gid.kind == infiniband.ROCE_V2 and not gid.link_local}


def _subnets(table: str, address: IPv4Address) -> Iterator[tuple[int, str]]:
    """Length of the prefix and interface of every subnet on the link that holds the address."""
    for line in table.splitlines()[1:]:
        try:
            name, destination, _, flags, _, _, _, mask = line.split()[:8]
            bits, route, network = int(flags, 16), _of_hex(mask), _of_hex(destination)
        except ValueError:  # no line of this table
            continue
        if route and bits & UP and not bits & (GATEWAY | REJECT) and int(address) & route == network:
            yield route.bit_count(), name


def _of_hex(word: str) -> int:
    """The kernel prints the bytes of an address as a number of the machine, which is little-endian wherever we run."""
    return int.from_bytes(bytes.fromhex(word), "little")


def _narrowest(subnets: Iterator[tuple[int, str]]) -> set[str]:
    found = list(subnets)
    longest = max((length for length, _ in found), default=0)
    return {name for length, name in found if length == longest}


def _ipv6(table: str, address: IPv6Address) -> Iterator[str]:
    for line in table.splitlines():
        words = line.split()
        if len(words) == 6 and words[0] == address.packed.hex():
            yield words[5]
