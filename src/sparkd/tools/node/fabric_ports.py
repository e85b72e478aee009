"""Network ports that may join this node to others: link, RDMA devices, twins and addresses of each.

Where lldpd runs, also the names of the machines at the other end: LLDP frames carry them, unsigned.
"""

import subprocess
from collections.abc import Iterator
from contextlib import suppress
from ipaddress import ip_address

from msgspec import Struct

from sparkd.base.host import Host, infiniband, network
from sparkd.base.host.files import Files
from sparkd.base.host.network import Link
from sparkd.base.lib.text import parse_json, sanitize

ETHERNET, INFINIBAND = "1", "32"
"""ARPHRD_ETHER and ARPHRD_INFINIBAND of linux/if_arp.h: tunnels have others."""
FAST_MBPS = 25_000
"""A port of at least this speed without an RDMA device may be one whose driver is missing."""
MOST = 16
"""Ports that are listed, the best ones."""
MOST_NAMES = 32
"""Interfaces of lldpd's answer that are read."""


class FabricPort(Struct, frozen=True):
    """A network port that may join this node to others."""

    link: Link
    hcas: tuple[str, ...]
    """RDMA devices that NCCL would use: the port's, and their twins with addresses."""
    addresses: tuple[str, ...]
    """IPv4 first, without link-local ones of IPv6."""
    twins: tuple[str, ...] = ()
    """Other interfaces of the same physical port."""

    @property
    def connected(self) -> bool:
        return self.link.carrier is True


def read_ports(files: Files) -> tuple[FabricPort, ...]:
    """Ports, the best for a fabric first: RDMA with a cable, then addresses, then speed. Raises OSError, ValueError."""
    addresses_by_name: dict[str, list[str]] = {}
    for address in network.read_addresses(files):
        if not (ip_address(address).is_loopback or (":" in address and ip_address(address).is_link_local)):
            addresses_by_name.setdefault(network.interface_of(files, address), []).append(address)
    ports = list(_find_ports(files, addresses_by_name, frozenset(network.default_routes(files))))
    return tuple(sorted(ports, key=_sort_key)[:MOST])


def _find_ports(
    files: Files, addresses_by_name: dict[str, list[str]], default_routes: frozenset[str]
) -> Iterator[FabricPort]:
    for link in _read_links(files):
        name = link.name
        hcas, addresses = infiniband.hcas_of(files, name), tuple(addresses_by_name.get(name, ()))
        is_fast = link.physical and (link.speed_mbps or 0) >= FAST_MBPS
        has_no_router = bool(addresses) and name not in default_routes  # as a cable between nodes
        if hcas or ((is_fast or has_no_router) and not _is_tunnel(files, name)):
            yield FabricPort(link, hcas, addresses, _find_twins(files, name, hcas))


def _read_links(files: Files) -> Iterator[Link]:
    """Links that may be a port: no loopback, no wireless, no bridge, and no member of a bridge or bond."""
    for name in network.link_names(files):
        entries = files.names_if_any(f"{network.FOLDER}/{name}")
        link = network.read_link(files, name)
        if link and not (link.loopback or link.wireless or {"bridge", "master"} & set(entries)):
            yield link


def _is_tunnel(files: Files, name: str) -> bool:
    kind = files.text_if_any(f"{network.FOLDER}/{name}/type") or ETHERNET
    return kind.strip() not in (ETHERNET, INFINIBAND)


def _find_twins(files: Files, name: str, hcas: tuple[str, ...]) -> tuple[str, ...]:
    with suppress(OSError, ValueError):
        twins = [twin for hca in hcas[:1] for twin in infiniband.find_twins(files, hca)[1:]]
        return tuple(interface for twin in twins for interface in twin.interfaces if interface != name)
    return ()


def _sort_key(port: FabricPort) -> tuple[bool, bool, bool, int, str]:
    """The order of `read_ports`: a false value comes first."""
    link = port.link
    return (
        not (port.hcas and port.connected),
        not port.connected,
        not port.addresses,
        -(link.speed_mbps or 0),
        link.name.lower(),  # enp1s0f0np0 before its twin enP2p1s0f0np0
    )


def read_names(host: Host) -> dict[str, tuple[str, ...]]:
    """Names of machines at the other end, by interface; empty without lldpd, or where this user may not query it."""
    if not host.live or not host.files.exists("/run/lldpd.socket"):
        return {}
    try:
        command = ("lldpcli", "-f", "json0", "show", "neighbors")
        return parse_names(subprocess.run(command, capture_output=True, timeout=2.0, check=True).stdout)
    except (OSError, subprocess.SubprocessError, ValueError):
        return {}


def parse_names(answer: bytes) -> dict[str, tuple[str, ...]]:
    """Names in lldpcli's json0, without entries of another form. Raises ValueError where it is no JSON."""
    names: dict[str, tuple[str, ...]] = {}
    match parse_json(answer):
        case {"lldp": [{"interface": [*interfaces]}]}:
            for interface in interfaces[:MOST_NAMES]:
                match interface:
                    case {"name": str(port), "chassis": [{"name": [{"value": str(name)}]}]}:
                        names[port] = (*names.get(port, ()), sanitize(name, 64))
    return names
