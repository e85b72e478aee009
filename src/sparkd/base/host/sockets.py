"""Listening TCP ports, the processes that hold them, requests that wait there, and the other end of a connection."""

import re
import socket
from collections.abc import Container, Iterable, Iterator
from ipaddress import IPv4Address, IPv6Address
from itertools import product

from msgspec import Struct

from sparkd.base.host.files import Files
from sparkd.base.host.open_files import open_files
from sparkd.base.host.processes import GONE, Process, overgrown
from sparkd.base.host.sock_diag import (
    INET_DIAG_SKV6ONLY,
    MOST_CHUNKS,
    TCP_CLOSE_WAIT,
    TCP_ESTABLISHED,
    TCP_LISTEN,
    TcpSocket,
    dump_tcp,
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


class PendingRequest(Struct, frozen=True):
    """A request, `seconds` after its last byte came. `begun`: its answer may have begun, by headers or some text."""

    seconds: float
    begun: bool = False


UNKNOWN_REQUEST = PendingRequest(2.0)
"""Stands for requests that can't be listed. It is old enough that the health monitor sends a test request, a canary
(`health.DOUBT_SECONDS`)."""


def read_proc_listeners(files: Files) -> tuple[Listener, ...]:
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


def query_kernel_listeners(files: Files, ports: tuple[int, ...], states: int = 1 << TCP_LISTEN) -> tuple[Listener, ...]:
    """Listening sockets of this network namespace by sock_diag(7): of these ports alone, or of all where none is given.

    The kernel selects, so that other sockets cost nothing. Raises OSError: OvergrownError where they are too many.
    `states`: others than listening ones, a bit each.
    """
    rows: list[TcpSocket] = []
    try:
        for port, family in product(ports or (0,), (socket.AF_INET, socket.AF_INET6)):
            rows.extend(dump_tcp(family, states, port=port))
    except TimeoutError:
        raise overgrown(files, "more listening sockets than can be read", (row.uid for row in rows)) from None
    return tuple(
        Listener(row.address, row.port, row.inode, only_ipv6=any(row.attributes.get(INET_DIAG_SKV6ONLY, b"")))
        for row in rows
        if row.inode and (row.port in ports or not ports)
    )


def find_peer(own: socket.socket) -> TcpSocket | None:
    """The socket at the other end. None where it is not on this machine, or no process has accepted the connection yet.

    Raises OSError, also where this kernel has no tcp_diag.
    """
    local, remote = own.getsockname(), own.getpeername()
    peer = find_tcp(own.family, remote, local)
    if peer is None and find_tcp(own.family, local, remote) is None:
        own.getpeername()  # raises OSError where the connection has ended, which the kernel does not know either
        raise FileNotFoundError("this kernel has no tcp_diag: sudo modprobe tcp_diag")
    return peer if peer and peer.inode and peer.state in (TCP_ESTABLISHED, TCP_CLOSE_WAIT) else None


def read_pending(port: int, most_chunks: int = MOST_CHUNKS) -> tuple[PendingRequest, ...]:
    """Requests to this local port that have no answer yet, or at most its beginning.

    The kernel reports when data last came and was sent on each TCP connection of this network namespace, not what. A
    request is pending while nothing was sent since its last byte, or only within BEGIN_MILLISECONDS after it. So a
    stream is not pending. A slow upload is, and an idle connection whose answer came at once: as begun. Raises OSError.
    UNKNOWN_REQUEST alone stands for more connections than can be read.
    """
    pending, states = list[PendingRequest](), 1 << TCP_ESTABLISHED | 1 << TCP_CLOSE_WAIT
    try:
        for family in (socket.AF_INET, socket.AF_INET6):
            for connection in dump_tcp(family, states, info=True, port=port, most_chunks=most_chunks):
                info = connection.info
                if info is None or not info.segments_received:
                    continue
                # From the last byte that came to the last data sent; below 0 where nothing was sent since.
                answer_ms = info.ms_since_received - info.ms_since_sent if info.segments_sent else -1
                if answer_ms <= BEGIN_MILLISECONDS:
                    pending.append(PendingRequest(info.ms_since_received / 1000, begun=answer_ms >= 0))
    except TimeoutError:
        return (UNKNOWN_REQUEST,)
    return tuple(pending)
