"""Queries of the network by UDP: whether large datagrams reach the other nodes, and whether DNS servers answer.

The other kernel answers a datagram to a free UDP port with "port unreachable", which proves that it arrived: that needs
no agent there, no root, and no ICMP of our own. Where only small ones are answered, the path drops large ones.
A tree of files has recorded results: see `files`.
"""

from __future__ import annotations

import errno
import secrets
import selectors
import socket
import struct
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack, closing, suppress
from ipaddress import ip_address
from itertools import chain, pairwise
from typing import TYPE_CHECKING

from msgspec import Struct

from sparkd.host import network

if TYPE_CHECKING:
    from sparkd.host import Host
    from sparkd.host.files import Files

ALL_SECONDS = 0.3
LARGE_AT_SECONDS = (0.0, 0.1, 0.2)
"""Repeated until an answer comes, since a link may lose a packet. Where large ones arrive, one is sent: kernels answer
a sender about once a second."""
SMALL_AT_SECONDS = (0.1,)
SMALL_BYTES = 64
PROBE = 3
_DISCOVER = {socket.AF_INET: (socket.IPPROTO_IP, 10), socket.AF_INET6: (socket.IPPROTO_IPV6, 23)}
"""IP_MTU_DISCOVER and IPV6_MTU_DISCOVER of linux/in.h and in6.h. PROBE: never fragmented, whatever path MTU the kernel
has stored."""
HEADERS = {socket.AF_INET: 28, socket.AF_INET6: 48}
"""Of IP and UDP."""
CONFIG = "/etc/resolv.conf"
UPSTREAM = "/run/systemd/resolve/resolv.conf"
STUB = "127.0.0.53"
MAX_SERVERS = 3
"""MAXNS of glibc, which ignores more."""
DNS_PORT = 53
QUERY_AT_SECONDS = (0.0, 0.15)
LIMIT_BYTES = 64 << 10


class Path(Struct, frozen=True):
    address: str
    fits: bool | None
    """Whether datagrams of the MTU arrive; None without any answer, and where none was sent."""


class Datagram:
    """Each has its own socket: an answer identifies nothing else. `arrived` is None while unknown."""

    def __init__(self, place: tuple[str, int], send_at: tuple[float, ...], content: bytes = b"") -> None:
        self.address = place[0]
        self.family = socket.AF_INET6 if ":" in self.address else socket.AF_INET
        self.socket = socket.socket(self.family, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        self.content = content
        self.send_at = send_at
        self.arrived: bool | None = None
        with suppress(OSError):  # no route: sending fails too
            self.socket.connect(place)

    def close(self) -> None:
        self.socket.close()

    def send(self) -> None:
        try:
            self.socket.send(self.content)
        except OSError as error:  # of this send, or of one before
            self.failed(error)

    def receive(self) -> None:
        try:
            self.received(self.socket.recv(4096))
        except BlockingIOError:
            return
        except OSError as error:
            self.failed(error)

    def received(self, _answer: bytes) -> None:
        self.arrived = True  # the port is in use after all

    def failed(self, error: OSError) -> None:
        if error.errno in (errno.ECONNREFUSED, errno.EMSGSIZE):
            self.arrived = error.errno == errno.ECONNREFUSED


class _DnsQuery(Datagram):
    def received(self, answer: bytes) -> None:
        if answer[:2] == self.content[:2]:
            self.arrived = True

    def failed(self, _error: OSError) -> None:
        """Refused, or no route: programs do not wait for it either."""
        self.arrived = True


def probe_paths(host: Host, addresses: Iterable[str], port: int, mtu: int) -> tuple[Path, ...]:
    """Takes `ALL_SECONDS` at most. `port` of UDP should be free on the other nodes."""
    if host.live:
        return probe_network(tuple(addresses), port, mtu)
    known = host.files.recorded("path_mtu", dict[str, bool | None]) or {}
    return tuple(Path(one, known.get(one)) for one in addresses)


def probe_network(addresses: tuple[str, ...], port: int, mtu: int) -> tuple[Path, ...]:
    with ExitStack() as stack:
        pairs = []
        for one in addresses:
            large = stack.enter_context(closing(Datagram((one, port), LARGE_AT_SECONDS)))
            small = stack.enter_context(closing(Datagram((one, port), SMALL_AT_SECONDS)))
            large.content, small.content = bytes(mtu - HEADERS[large.family]), bytes(SMALL_BYTES)
            for datagram in (large, small):
                datagram.socket.setsockopt(*_DISCOVER[datagram.family], PROBE)
            pairs.append((large, small))
        _exchange(pairs)
        return tuple(
            Path(large.address, False if large.arrived is None and small.arrived else large.arrived)
            for large, small in pairs
        )


def _exchange(groups: Sequence[Sequence[Datagram]]) -> None:
    """Send the datagrams of each group at their times, until the first of the group is decided."""
    began = time.monotonic()
    times = sorted({at for group in groups for one in group for at in one.send_at})
    with selectors.DefaultSelector() as selector:
        for one in chain.from_iterable(groups):
            selector.register(one.socket, selectors.EVENT_READ, one)
        for at, until in pairwise((*times, ALL_SECONDS)):
            for group in groups:
                for one in group:
                    if at in one.send_at and group[0].arrived is None:
                        one.send()
            while any(group[0].arrived is None for group in groups) and (left := began + until - time.monotonic()) > 0:
                for key, _ in selector.select(left):
                    key.data.receive()


def read_servers(files: Files) -> tuple[str, ...]:
    """DNS servers of a container in the host's network: those of /etc/resolv.conf; where that lists systemd's stub
    alone, docker takes the servers behind the stub. Raises OSError.
    """
    found = _read_servers(files, CONFIG)
    return _read_servers(files, UPSTREAM) or found if found == (STUB,) else found


def query_servers(host: Host, servers: tuple[str, ...], address: str) -> Mapping[str, bool | None]:
    """Whether each server answers a reverse lookup of the address; empty where a tree has no record."""
    if host.live:
        return query_network(servers, address)
    return host.files.recorded("resolver", dict[str, bool | None]) or {}


def query_network(servers: tuple[str, ...], address: str, port: int = DNS_PORT) -> dict[str, bool]:
    """All at once, in `ALL_SECONDS` at most. A refusal is an answer: only silence delays a start."""
    query = _reverse_query(address)
    answered = dict.fromkeys(servers, True)
    with ExitStack() as stack:
        queries = []
        for server in servers:
            try:
                queries.append(stack.enter_context(closing(_DnsQuery((server, port), QUERY_AT_SECONDS, query))))
            except OSError as error:
                # A kernel without IPv6: programs do not wait for such a server either.
                if error.errno != errno.EAFNOSUPPORT:
                    raise
        _exchange([(one,) for one in queries])
    return answered | {one.address: one.arrived is not None for one in queries}


def _reverse_query(address: str) -> bytes:
    """The query of torch's rendezvous: the name of a node's address. For a private one, a server answers by itself."""
    name = ip_address(network.canonical(address)).reverse_pointer
    labels = b"".join(bytes([len(label)]) + label.encode("ascii") for label in name.split("."))
    recursion_desired, pointer, internet = 0x0100, 12, 1
    head = struct.pack(">HHHHHH", secrets.randbits(16), recursion_desired, 1, 0, 0, 0)
    return head + labels + b"\0" + struct.pack(">HH", pointer, internet)


def _read_servers(files: Files, path: str) -> tuple[str, ...]:
    words = [line.split() for line in (files.text_if_any(path, limit=LIMIT_BYTES) or "").splitlines()]
    found: dict[str, None] = {}
    for named in (line[1] for line in words if len(line) > 1 and line[0] == "nameserver"):
        with suppress(ValueError):
            ip_address(named)
            found[named] = None
    return tuple(found)[:MAX_SERVERS]
