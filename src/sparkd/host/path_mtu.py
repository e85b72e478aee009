"""How large a datagram reaches the other nodes in one piece, asked of the network itself.

A datagram to a UDP port that nobody holds is answered by the other kernel: port unreachable. So an answer proves that
the datagram arrived, and no agent, no root and no ICMP of our own is needed. A path that is too narrow swallows large
ones without a word where a switch drops them, so a small one is the proof that anybody answers at all.
A tree of files carries what was found in /.sparkd/path_mtu.json: address -> whether large datagrams arrive, or null.
"""

from __future__ import annotations

import errno
import selectors
import socket
import time
from collections.abc import Iterable
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING, Self

from msgspec import Struct

from sparkd.host import recorded

if TYPE_CHECKING:
    from sparkd.host import Host

RECORD = "path_mtu"
ALL_SECONDS = 0.3
LARGE_AT_SECONDS = (0.0, 0.1, 0.2)
"""Anew while there is no answer, for a link may lose a packet. Where large ones arrive, one is sent: kernels answer
a sender about once a second."""
SMALL_AT_SECONDS = (0.1,)
SMALL_BYTES = 64
IP_MTU_DISCOVER, IPV6_MTU_DISCOVER, PROBE = 10, 23, 3
"""linux/in.h and in6.h. PROBE: never in pieces, whatever the kernel believes of the path."""
HEADERS = {socket.AF_INET: 28, socket.AF_INET6: 48}
"""Of IP and UDP."""


class Path(Struct, frozen=True):
    """To another node."""

    address: str
    fits: bool | None
    """Whether datagrams of the MTU arrive; None where nobody answers, or nobody was asked."""


def look(host: Host, addresses: Iterable[str], port: int, mtu: int) -> tuple[Path, ...]:
    """Takes `ALL_SECONDS` at most."""
    if host.live:
        return ask(tuple(addresses), port, mtu)
    known = recorded.by_address(host.files, RECORD)
    return tuple(Path(one, known.get(one)) for one in addresses)


def ask(addresses: tuple[str, ...], port: int, mtu: int) -> tuple[Path, ...]:
    """All at once. `port`: of UDP, that nobody is likely to hold there."""
    began = time.monotonic()
    with ExitStack() as closing, selectors.DefaultSelector() as selector:
        probes = [closing.enter_context(_Pair(one, port, mtu)) for one in addresses]
        for pair in probes:
            pair.register(selector)
        times = sorted({*LARGE_AT_SECONDS, *SMALL_AT_SECONDS})
        for at, until in zip(times, [*times[1:], ALL_SECONDS], strict=True):
            for pair in probes:
                pair.send(at)
            _hear(selector, probes, began + until)
        return tuple(pair.path() for pair in probes)


def _hear(selector: selectors.BaseSelector, probes: list[_Pair], until: float) -> None:
    while any(not pair.decided for pair in probes) and (left := until - time.monotonic()) > 0:
        for key, _ in selector.select(left):
            key.data.hear()


class _Pair:
    """A large and a small datagram to one node, each from a socket of its own: an answer names no more than that."""

    def __init__(self, address: str, port: int, mtu: int) -> None:
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        self._address = address
        self._place = (address, port)
        self._large = _Datagram(family, b"\0" * (mtu - HEADERS[family]))
        self._small = _Datagram(family, b"\0" * SMALL_BYTES)

    def __enter__(self) -> Self:
        for one in (self._large, self._small):
            one.connect(self._place)
        return self

    def __exit__(self, *_: object) -> None:
        for one in (self._large, self._small):
            one.socket.close()

    @property
    def decided(self) -> bool:
        return self._large.arrived is not None

    def register(self, selector: selectors.BaseSelector) -> None:
        for one in (self._large, self._small):
            selector.register(one.socket, selectors.EVENT_READ, one)

    def send(self, at: float) -> None:
        if self.decided:
            return
        if at in LARGE_AT_SECONDS:
            self._large.send()
        if at in SMALL_AT_SECONDS:
            self._small.send()

    def path(self) -> Path:
        fits = self._large.arrived
        return Path(self._address, False if fits is None and self._small.arrived else fits)


class _Datagram:
    """`arrived` is None until something is heard of it; False where a kernel on the way says that it is too large."""

    def __init__(self, family: socket.AddressFamily, content: bytes) -> None:
        self.socket = socket.socket(family, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        self.arrived: bool | None = None
        self._content = content
        if family == socket.AF_INET6:
            self.socket.setsockopt(socket.IPPROTO_IPV6, IPV6_MTU_DISCOVER, PROBE)
        else:
            self.socket.setsockopt(socket.IPPROTO_IP, IP_MTU_DISCOVER, PROBE)

    def connect(self, place: tuple[str, int]) -> None:
        with suppress(OSError):  # no route: nothing will be heard
            self.socket.connect(place)

    def send(self) -> None:
        try:
            self.socket.send(self._content)
        except OSError as error:  # of this send, or of one before
            self._told(error)

    def hear(self) -> None:
        try:
            self.socket.recv(1)
            self.arrived = True  # somebody holds the port after all
        except BlockingIOError:
            return
        except OSError as error:
            self._told(error)

    def _told(self, error: OSError) -> None:
        if error.errno == errno.ECONNREFUSED:
            self.arrived = True
        elif error.errno == errno.EMSGSIZE:
            self.arrived = False
