"""Whether large datagrams reach the other nodes.

The other kernel answers a datagram to a free UDP port with "port unreachable", which proves that it arrived: that needs
no agent there, no root, and no ICMP of our own. Where only small ones are answered, the path drops large ones.
A tree of files has recorded results: see `files`.
"""

from __future__ import annotations

import errno
import selectors
import socket
import time
from collections.abc import Iterable
from contextlib import ExitStack, suppress
from itertools import chain, pairwise
from typing import TYPE_CHECKING

from msgspec import Struct

if TYPE_CHECKING:
    from sparkd.base.host import Host

LARGE_AT_SECONDS = (0.0, 0.1, 0.2)
"""Times of the large datagrams, until one is answered: a link may lose a packet. Where the first arrives no other is
sent, since kernels answer a sender about once a second."""
SMALL_AT_SECONDS = LARGE_AT_SECONDS[1]
_DISCOVER = {socket.AF_INET: (socket.IPPROTO_IP, 10), socket.AF_INET6: (socket.IPPROTO_IPV6, 23)}
"""IP_MTU_DISCOVER and IPV6_MTU_DISCOVER of linux/in.h and in6.h."""
HEADERS = {socket.AF_INET: 28, socket.AF_INET6: 48}
"""Bytes of the headers of IP and UDP."""


class PathMtu(Struct, frozen=True):
    address: str
    fits: bool | None
    """Whether datagrams of the MTU arrive; None without any answer, and where none was sent."""


class Datagram:
    """A datagram with a socket of its own, since an answer identifies nothing else. `arrived` is None while unknown."""

    def __init__(self, address: str, port: int, size_bytes: int) -> None:
        """`size_bytes`: with its headers."""
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        self.socket = socket.socket(family, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        # IP_PMTUDISC_PROBE, IPV6_PMTUDISC_PROBE: never fragmented, whatever path MTU the kernel has stored.
        self.socket.setsockopt(*_DISCOVER[family], 3)
        self._content = bytes(size_bytes - HEADERS[family])
        self.arrived: bool | None = None
        with suppress(OSError):  # no route: sending fails too
            self.socket.connect((address, port))

    def send(self) -> None:
        try:
            self.socket.send(self._content)
        except OSError as error:  # of this send, or of one before
            self._judge(error)

    def receive(self) -> None:
        try:
            self.socket.recv(4096)
        except BlockingIOError:
            return
        except OSError as error:
            self._judge(error)
        else:
            self.arrived = True  # the port is in use after all

    def _judge(self, error: OSError) -> None:
        if error.errno in (errno.ECONNREFUSED, errno.EMSGSIZE):
            self.arrived = error.errno == errno.ECONNREFUSED


def probe_paths(host: Host, addresses: Iterable[str], port: int, mtu: int) -> tuple[PathMtu, ...]:
    """The paths to these addresses, after 0.3 s at most. The UDP `port` should be free on the other nodes."""
    if host.live:
        return probe_network(tuple(addresses), port, mtu)
    recorded = host.files.recorded("path_mtu", dict[str, bool | None]) or {}
    return tuple(PathMtu(address, recorded.get(address)) for address in addresses)


def probe_network(addresses: tuple[str, ...], port: int, mtu: int) -> tuple[PathMtu, ...]:
    """Send each address up to three large datagrams, and one small one, until it is known whether the large arrive."""
    started_at = time.monotonic()
    with ExitStack() as stack, selectors.DefaultSelector() as selector:
        pairs = [(Datagram(address, port, mtu), Datagram(address, port, 64)) for address in addresses]
        for datagram in chain.from_iterable(pairs):
            stack.enter_context(datagram.socket)
            selector.register(datagram.socket, selectors.EVENT_READ, datagram)
        for send_at, end_at in pairwise((*LARGE_AT_SECONDS, 0.3)):
            for large, small in pairs:
                if large.arrived is None:
                    large.send()
                    if send_at == SMALL_AT_SECONDS:
                        small.send()
            _receive_answers(selector, [large for large, _ in pairs], started_at + end_at)
        return tuple(
            PathMtu(address, False if large.arrived is None and small.arrived else large.arrived)
            for address, (large, small) in zip(addresses, pairs, strict=True)
        )


def _receive_answers(selector: selectors.BaseSelector, awaited: list[Datagram], deadline: float) -> None:
    """Receive answers until it is known of all `awaited` whether they arrived, or until the deadline."""
    while any(datagram.arrived is None for datagram in awaited) and (seconds := deadline - time.monotonic()) > 0:
        for key, _ in selector.select(seconds):
            key.data.receive()
