"""Network interfaces as /sys/class/net shows them, this machine's IP addresses, and which interface carries each."""

import re
import socket
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing, suppress
from ipaddress import IPv4Address, IPv4Network, IPv6Address, ip_address
from typing import NamedTuple

from msgspec import Struct

from sparkd.base.host.files import Files
from sparkd.base.lib.text import sanitize

FOLDER = "/sys/class/net"
IFF_UP, IFF_LOOPBACK = 0x1, 0x8
MAX_LOWER = 16
"""A bond of a DGX Spark has four members at most."""
OPTIMISTIC, TENTATIVE = 0x04, 0x40
"""IFA_F_OPTIMISTIC and IFA_F_TENTATIVE of linux/if_addr.h."""
RTF_UP, RTF_GATEWAY = 0x0001, 0x0002
"""Flags of linux/route.h."""

_LOCAL = re.compile(r"\|-- (\S+)\n(?: +/.*\n)*? +/32 host LOCAL$", re.MULTILINE)
"""A leaf of the trie; the machine's own is followed by `/32 host LOCAL`."""


class Link(Struct, frozen=True):
    """One interface. None: not reported by the kernel, as for one that is down, and for a software interface."""

    name: str
    up: bool
    """Administratively; `carrier` is the state of the cable."""
    operstate: str
    carrier: bool | None
    speed_mbps: int | None
    mtu: int
    physical: bool
    """Whether it has a device. A software interface (veth, tun) reports any speed."""
    loopback: bool
    wireless: bool
    lower: tuple[str, ...] = ()


def read_link(files: Files, name: str) -> Link | None:
    """An interface by name; None where there is none. Raises ValueError for another format."""
    try:
        names = files.names(f"{FOLDER}/{name}")
    except (FileNotFoundError, NotADirectoryError):
        return None

    def value(key: str) -> str:
        """Empty where the kernel reports none: no such file, or EINVAL for an interface that is down."""
        with suppress(OSError):
            return files.value(f"{FOLDER}/{name}/{key}")
        return ""

    flags, speed, carrier = int(value("flags") or "0", 16), int(value("speed") or "0"), value("carrier")
    return Link(
        name=name,
        up=bool(flags & IFF_UP),
        operstate=sanitize(value("operstate") or "unknown", 32),
        carrier=carrier == "1" if carrier else None,
        speed_mbps=speed if 0 < speed < 1 << 31 else None,
        mtu=int(value("mtu") or "0"),
        physical="device" in names,
        loopback=bool(flags & IFF_LOOPBACK),
        wireless="wireless" in names or "phy80211" in names,
        lower=tuple(file.removeprefix("lower_") for file in names if file.startswith("lower_"))[:MAX_LOWER],
    )


def read_links(files: Files, name: str) -> tuple[Link, ...]:
    """The interface and all below it, such as a VLAN on a bond. Empty where there is no such interface."""
    links: dict[str, Link] = {}
    todo = [name]
    while todo and len(links) < MAX_LOWER:
        lower = todo.pop(0)
        if lower not in links and (link := read_link(files, lower)):
            links[lower] = link
            todo += link.lower
    return tuple(links.values())


def link_names(files: Files) -> tuple[str, ...]:
    """Names of all interfaces: without `bonding_masters`, a file beside them while the module bonding is loaded."""
    return tuple(name for name in files.names_if_any(FOLDER) if name != "bonding_masters")


def default_routes(files: Files) -> Mapping[str, str]:
    """Gateways of IPv4's default routes by interface; 0.0.0.0 for one without."""
    defaults = (route for route in _read_routes(files) if not route.destination and not route.netmask)
    return {route.interface: str(IPv4Address(route.gateway)) for route in defaults}


def find_answering(files: Files, addresses: Iterable[str]) -> Mapping[str, bool]:
    """Map each on-link IPv4 address to whether it answered ARP, which no firewall stops. Addresses without a row in
    this kernel's table, which any user of it can fill, are left out.

    An empty datagram to each makes this kernel verify its row for the next call: with repeated calls, a neighbour that
    has gone leaves the table within a minute (arp(7)). Raises ValueError for another format.
    """
    on_link = set[str]()
    for address in addresses:
        with suppress(ValueError):  # a text of another node may be any, and a zone would be looked up as a name
            on_link |= {address} if interfaces_of(files, str(IPv4Address(address))) else set()
    if files.root == "/":
        with closing(socket.socket(socket.AF_INET, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)) as probe:
            for address in on_link:
                with suppress(OSError):
                    probe.sendto(b"", (address, 9))  # discard
    answers = dict[str, bool]()
    for row in map(str.split, (files.text_if_any("/proc/net/arp") or "").splitlines()[1:]):
        if len(row) > 2 and row[0] in on_link:
            answers[row[0]] = answers.get(row[0], False) or bool(int(row[2], 16) & 2)  # ATF_COM of linux/if_arp.h
    return answers


def read_addresses(files: Files) -> tuple[str, ...]:
    """Addresses of all interfaces, loopback included, in canonical form; IPv4 first."""
    ipv4 = dict.fromkeys(_LOCAL.findall(files.text("/proc/net/fib_trie", limit=64 << 20)))
    ipv6 = (str(address) for address, _, flags in _read_if_inet6(files) if not flags & TENTATIVE or flags & OPTIMISTIC)
    return (*ipv4, *ipv6)


def canonical(address: str) -> str:
    """The form to compare by: `::ffff:10.0.0.1` is 10.0.0.1, and a zone is dropped. Raises ValueError."""
    parsed = ip_address(address.partition("%")[0])
    mapped = parsed.ipv4_mapped if isinstance(parsed, IPv6Address) else None
    return str(mapped or parsed)


def is_foreign(files: Files, text: str) -> bool:
    """Whether a text is an IP address that no program can bind here. A name is none, nor an address for all."""
    try:
        address = ip_address(canonical(text.strip("[]")))
    except ValueError:
        return False
    is_bindable = files.text_if_any(f"/proc/sys/net/ipv{address.version}/ip_nonlocal_bind") == "1\n"
    is_any = address.is_unspecified or address.is_loopback
    return not (is_bindable or is_any or str(address) in read_addresses(files))


def interface_of(files: Files, address: str) -> str:
    """The interface that carries one of this machine's addresses; empty where unknown or ambiguous."""
    interfaces = interfaces_of(files, address)
    return interfaces[0] if len(interfaces) == 1 else ""


def interfaces_of(files: Files, address: str) -> tuple[str, ...]:
    """Every interface that may carry one of this machine's addresses, by name; several on one subnet.

    IPv4 is found by the subnet route in the main table, which the kernel adds itself whatever rules there are.
    """
    wanted = ip_address(canonical(address))
    try:
        if isinstance(wanted, IPv6Address):
            return tuple(sorted({interface for carried, interface, _ in _read_if_inet6(files) if carried == wanted}))
        subnets = list(_find_subnets(files, wanted))
    except OSError:
        return ()
    narrowest = max((length for length, _ in subnets), default=0)
    return tuple(sorted({interface for length, interface in subnets if length == narrowest}))


def subnet_of(files: Files, address: str) -> str:
    """The directly connected IPv4 network of an address, such as 192.168.1.0/24; empty where none is known."""
    with suppress(OSError, ValueError):
        lengths = [length for length, _ in _find_subnets(files, IPv4Address(address))]
        return str(IPv4Network((address, max(lengths)), strict=False))
    return ""


def _read_if_inet6(files: Files) -> Iterator[tuple[IPv6Address, str, int]]:
    """Address, interface and flags; none in a kernel without IPv6. Nothing can listen on a tentative address."""
    for line in (files.text_if_any("/proc/net/if_inet6") or "").splitlines():
        words = line.split()
        if len(words) == 6:
            yield IPv6Address(bytes.fromhex(words[0])), words[5], int(words[4], 16)


class _Route(NamedTuple):
    interface: str
    destination: int
    gateway: int
    flags: int
    netmask: int


def _read_routes(files: Files) -> Iterator[_Route]:
    """IPv4's routes in the main table, without those that drop packets, whose interface is `*`."""
    for row in map(str.split, (files.text_if_any("/proc/net/route") or "").splitlines()[1:]):
        with suppress(ValueError):  # another format
            interface, destination, gateway, flags, _, _, _, netmask = row[:8]
            route = _Route(interface, _parse_hex(destination), _parse_hex(gateway), int(flags, 16), _parse_hex(netmask))
            if interface != "*":
                yield route


def _find_subnets(files: Files, address: IPv4Address) -> Iterator[tuple[int, str]]:
    """Prefix length and interface of every directly connected subnet that contains the address."""
    for route in _read_routes(files):
        is_direct = route.flags & RTF_UP and not route.flags & RTF_GATEWAY
        if route.netmask and is_direct and int(address) & route.netmask == route.destination:
            yield route.netmask.bit_count(), route.interface


def _parse_hex(word: str) -> int:
    """The number of an address, which the kernel prints in the machine's byte order: little-endian where supported."""
    return int.from_bytes(bytes.fromhex(word), "little")


def source_address(files: Files) -> str:
    """This machine's IPv4 address toward other networks, as the kernel would choose it; empty without a route.

    Connecting a UDP socket sends nothing.
    """
    if files.root != "/":
        return ""
    with suppress(OSError), closing(socket.socket(socket.AF_INET, socket.SOCK_DGRAM)) as probe:
        probe.connect(("203.0.113.1", 9))  # of TEST-NET-3 (RFC 5737), which no network has
        return str(probe.getsockname()[0])
    return ""
