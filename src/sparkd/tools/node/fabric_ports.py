"""Network ports that may join this node to others: the real link, its RDMA devices, their twins, and its addresses; and
the names of the machines at the other end, where lldpd runs: LLDP frames carry them, unsigned.
"""

from __future__ import annotations

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
"""A port at least so fast that is no RDMA device may be one whose driver is missing."""
MOST = 16


class FabricPort(Struct, frozen=True):
    link: Link
    hcas: tuple[str, ...]
    """Its RDMA devices, and their twins with addresses: what NCCL would use."""
    addresses: tuple[str, ...]
    """IPv4 first; none that is link-local in IPv6."""
    twins: tuple[str, ...] = ()
    """Interfaces of the same physical port beside this one."""

    @property
    def connected(self) -> bool:
        return self.link.carrier is True


def read_ports(files: Files) -> tuple[FabricPort, ...]:
    """Ports, the best for a fabric first: RDMA with a cable, then addresses, then speed. Raises OSError, ValueError."""
    owned: dict[str, list[str]] = {}
    for address in network.read_addresses(files):
        if not (ip_address(address).is_loopback or (":" in address and ip_address(address).is_link_local)):
            owned.setdefault(network.interface_of(files, address), []).append(address)
    ports = list(_ports(files, owned, frozenset(network.default_routes(files))))
    return tuple(sorted(ports, key=_worth)[:MOST])


def _ports(files: Files, owned: dict[str, list[str]], outward: frozenset[str]) -> Iterator[FabricPort]:
    for name in network.link_names(files):
        inside = files.names_if_any(f"{network.FOLDER}/{name}")
        link = network.read_link(files, name)
        if link is None or link.loopback or link.wireless or {"bridge", "master"} & set(inside):
            continue
        hcas, addresses = infiniband.hcas_of(files, name), tuple(owned.get(name, ()))
        fast = link.physical and (link.speed_mbps or 0) >= FAST_MBPS
        if hcas or ((fast or (addresses and name not in outward)) and not _is_tunnel(files, name)):
            yield FabricPort(link, hcas, addresses, _twins(files, name, hcas))


def _is_tunnel(files: Files, name: str) -> bool:
    kind = files.text_if_any(f"{network.FOLDER}/{name}/type") or ETHERNET
    return kind.strip() not in (ETHERNET, INFINIBAND)


def _twins(files: Files, name: str, hcas: tuple[str, ...]) -> tuple[str, ...]:
    with suppress(OSError, ValueError):
        twins = [twin for hca in hcas[:1] for twin in infiniband.find_twins(files, hca)[1:]]
        return tuple(interface for twin in twins for interface in twin.interfaces if interface != name)
    return ()


def _worth(port: FabricPort) -> tuple[bool, bool, bool, int, str]:
    link = port.link
    return (
        not (port.hcas and port.connected),
        not port.connected,
        not port.addresses,
        -(link.speed_mbps or 0),
        link.name.lower(),  # enp1s0f0np0 before its twin enP2p1s0f0np0
    )


SOCKET = "/run/lldpd.socket"
MOST_NAMES = 32


def read_names(host: Host) -> dict[str, tuple[str, ...]]:
    """Names by interface; empty where lldpd does not run, or this user may not query it."""
    if not host.live or not host.files.exists(SOCKET):
        return {}
    try:
        command = ("lldpcli", "-f", "json0", "show", "neighbors")
        return parse_names(subprocess.run(command, capture_output=True, timeout=2.0, check=True).stdout)
    except (OSError, subprocess.SubprocessError, ValueError):
        return {}


def parse_names(answer: bytes) -> dict[str, tuple[str, ...]]:
    """Names in lldpcli's json0. What has another form is left out. Raises ValueError where it is no JSON."""
    names: dict[str, tuple[str, ...]] = {}
    match parse_json(answer):
        case {"lldp": [{"interface": [*interfaces]}]}:
            for interface in interfaces[:MOST_NAMES]:
                match interface:
                    case {"name": str(port), "chassis": [{"name": [{"value": str(name)}]}]}:
                        names[port] = (*names.get(port, ()), sanitize(name, 64))
    return names
