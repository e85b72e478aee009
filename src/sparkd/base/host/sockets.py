"""Listening TCP ports, the processes that hold them, and connections on which a request waits for its answer."""

import re
import socket
from collections.abc import Container, Iterable, Iterator
from ipaddress import IPv4Address, IPv6Address
from itertools import chain, product

from msgspec import Struct

from sparkd.base.host.files import Files
from sparkd.base.host.processes import GONE, Process, open_files, overgrown
from sparkd.base.host.sock_diag import (
    INET_DIAG_SKV6ONLY,
    TCP_CLOSE_WAIT,
    TCP_ESTABLISHED,
    TCP_LISTEN,
    TcpInfo,
    TcpSocket,
    dump_tcp,
    find_listening_name,
    find_tcp,
)

_LISTENING = re.compile(
    r"^ *\d+: ([0-9A-F]{8}|[0-9A-F]{32}):([0-9A-F]{4}) \S+ 0A \S+ \S+ \S+ +\d+ +\d+ +(\d+)\b", re.MULTILINE
)
"""Address and port, TCP_LISTEN, the socket's inode: proc(5)."""
TABLE_BYTES = 16 << 20
"""Some 100,000 sockets."""

BEGIN_MILLISECONDS = 1000
"""Time in which a server that streams sends its headers: at once, or when it has tokenized the prompt. What is sent
after that is the answer itself."""


class Listener(Struct, frozen=True):
    address: str
    port: int
    inode: int
    only_ipv6: bool = False
    """Whether IPV6_V6ONLY is set: without it a listener on `::` holds its port for IPv4 too. /proc does not show it."""


class Holder(Struct, frozen=True):
    listener: Listener
    pid: int


class Peer(Struct, frozen=True):
    """The other end of a connection, which a process of this machine has accepted."""

    uid: int
    """User of the process that made it."""
    inode: int


class PendingRequest(Struct, frozen=True):
    """A request, `seconds` after its last byte came. `begun`: its answer may have begun, by headers or some text."""

    seconds: float
    begun: bool = False


UNKNOWN_REQUEST = PendingRequest(2.0)
"""Stands for requests that can't be listed. It is old enough for a canary (`health.DOUBT_SECONDS`)."""


def read_listeners(files: Files) -> tuple[Listener, ...]:
    """Listening sockets of every address. /proc does not show a socket that is bound but does not listen yet."""
    ipv6 = files.text_if_any("/proc/net/tcp6", limit=TABLE_BYTES) or ""  # none in a kernel without it
    rows = _LISTENING.findall(files.text("/proc/net/tcp", limit=TABLE_BYTES)) + _LISTENING.findall(ipv6)
    return tuple(Listener(_parse_address(address), int(port, 16), int(inode)) for address, port, inode in rows)


def _parse_address(text: str) -> str:
    """An address of /proc, each 32-bit word of which is in the machine's byte order: little-endian where supported."""
    raw = bytes.fromhex(text)
    swapped = b"".join(raw[at : at + 4][::-1] for at in range(0, len(raw), 4))
    return str(IPv4Address(swapped) if len(raw) == 4 else IPv6Address(swapped))


def find_holders(files: Files, processes: Iterable[Process], wanted: tuple[Listener, ...]) -> tuple[Holder, ...]:
    """Processes that have these sockets open, of those that are readable."""
    by_target = {f"socket:[{listener.inode}]": listener for listener in wanted}
    opened = open_files(files, processes, by_target.__contains__).found
    return tuple(dict.fromkeys(Holder(by_target[file.target], file.pid) for file in opened))


def list_inodes(files: Files, pid: int) -> Iterator[int]:
    """Inodes of the sockets that a process has open. Raises OSError."""
    for _, target in files.links(f"/proc/{pid}/fd"):
        if target.startswith("socket:["):
            yield int(target.removeprefix("socket:[").removesuffix("]"))


def has_open(files: Files, pid: int, inodes: Container[int]) -> bool:
    """Whether a process has one of these sockets open; False once it has ended. Raises OSError."""
    try:
        return any(inode in inodes for inode in list_inodes(files, pid))
    except GONE:
        return False


def query_listeners(files: Files, ports: Iterable[int]) -> tuple[Listener, ...]:
    """Listening sockets of this network namespace by sock_diag(7): of these ports alone, or of all where none is given.

    The kernel selects, so that other sockets cost nothing. Raises OSError: OvergrownError where they are too many.
    """
    listening: list[TcpSocket] = []
    try:
        for port, family in product(ports or (0,), (socket.AF_INET, socket.AF_INET6)):
            listening.extend(dump_tcp(family, 1 << TCP_LISTEN, port=port))
    except TimeoutError:
        raise overgrown(files, "more listening sockets than can be read", (row.uid for row in listening)) from None
    return tuple(
        Listener(row.address, row.port, row.inode, only_ipv6=any(row.attributes.get(INET_DIAG_SKV6ONLY, b"")))
        for row in listening
    )


def is_listening_under(inodes: Iterable[int], names: Container[bytes]) -> bool | None:
    """Whether one of these Unix sockets listens under one of these names. No table is read: the kernel looks up each.

    None where the kernel knows none of them, as one without unix_diag. Raises OSError.
    """
    is_known = False
    for inode in inodes:
        if (name := find_listening_name(inode)) in names:
            return True
        is_known = is_known or name is not None
    return False if is_known else None


def find_peer(own: socket.socket) -> Peer | None:
    """The socket at the other end. None where it is not on this machine, or no process has accepted the connection yet.

    Raises OSError, also where this kernel has no tcp_diag.
    """
    local, remote = own.getsockname(), own.getpeername()
    peer = find_tcp(own.family, remote, local)
    if peer is None and find_tcp(own.family, local, remote) is None:
        own.getpeername()  # raises OSError where the connection has ended, which the kernel does not know either
        raise FileNotFoundError("this kernel has no tcp_diag: sudo modprobe tcp_diag")
    if peer is None or not peer.inode or peer.state not in (TCP_ESTABLISHED, TCP_CLOSE_WAIT):
        return None
    return Peer(peer.uid, peer.inode)


def read_unanswered(port: int) -> tuple[PendingRequest, ...]:
    """Requests to this local port whose last byte was followed by no data, or by some within BEGIN_MILLISECONDS alone.

    The kernel reports when data last came and was sent on each TCP connection of this network namespace, not what. So a
    stream does not count. A slow upload counts, and so does a connection that is idle after an answer, which has begun.
    Raises OSError.
    """
    states = 1 << TCP_ESTABLISHED | 1 << TCP_CLOSE_WAIT
    families = (socket.AF_INET, socket.AF_INET6)
    connections = chain.from_iterable(dump_tcp(family, states, info=True, port=port) for family in families)
    infos = (connection.info for connection in connections)
    return tuple(
        PendingRequest(
            info.ms_since_received / 1000, begun=info.segments_sent > 0 and info.ms_since_sent <= info.ms_since_received
        )
        for info in infos
        if info is not None and info.segments_received and not _has_followed(info)
    )


def _has_followed(info: TcpInfo) -> bool:
    """Whether data was sent later than BEGIN_MILLISECONDS after the last byte that came."""
    return info.segments_sent > 0 and info.ms_since_sent + BEGIN_MILLISECONDS < info.ms_since_received
