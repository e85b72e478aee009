"""Listening TCP ports, the processes that hold them, and connections on which a request waits for its answer."""

import re
import socket
from collections.abc import Container, Iterable, Iterator
from ipaddress import IPv4Address, IPv6Address, ip_address
from itertools import product

from msgspec import Struct

from sparkd.base.host.files import Files
from sparkd.base.host.processes import GONE, Process, open_files, overgrown
from sparkd.base.host.sock_diag import (
    ADDRESS_AT,
    ANY_COOKIE,
    ATTRIBUTE,
    INET_DIAG_INFO,
    INET_DIAG_SKV6ONLY,
    INODE_AT,
    MESSAGE_BYTES,
    PORT_AT,
    REQUEST,
    TCP_CLOSE_WAIT,
    TCP_ESTABLISHED,
    TCP_INFO,
    TCP_LISTEN,
    UDIAG_SHOW_NAME,
    UID_AT,
    UNIX_DIAG_NAME,
    UNIX_MESSAGE_BYTES,
    UNIX_REQUEST,
    UNIX_STATE_AT,
    dump_connections,
    query_one,
    records,
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
    listeners: list[Listener] = []
    uids: list[int] = []
    try:
        for port, family in product(ports or (0,), (socket.AF_INET, socket.AF_INET6)):
            for message in dump_connections(family, 1 << TCP_LISTEN, port=port):
                uids.append(int.from_bytes(message[UID_AT:INODE_AT], "little"))
                listeners.append(_parse_listener(family, message))
    except TimeoutError:
        raise overgrown(files, "more listening sockets than can be read", uids) from None
    return tuple(listeners)


def _parse_listener(family: int, message: bytes) -> Listener:
    attributes = records(message[MESSAGE_BYTES:], ATTRIBUTE)
    raw = message[ADDRESS_AT : ADDRESS_AT + (4 if family == socket.AF_INET else 16)]
    return Listener(
        address=str(IPv4Address(raw) if family == socket.AF_INET else IPv6Address(raw)),
        port=int.from_bytes(message[PORT_AT : PORT_AT + 2], "big"),
        inode=int.from_bytes(message[INODE_AT:MESSAGE_BYTES], "little"),
        only_ipv6=any(kind == INET_DIAG_SKV6ONLY and any(value) for kind, value in attributes),
    )


def is_listening_under(inodes: Iterable[int], names: Container[bytes]) -> bool | None:
    """Whether one of these Unix sockets listens under one of these names. No table is read: the kernel looks up each.

    None where the kernel knows none of them, as one without unix_diag. Raises OSError.
    """
    is_known = False
    for inode in inodes:
        message = query_one(UNIX_REQUEST.pack(socket.AF_UNIX, 0, 0, 0, inode, UDIAG_SHOW_NAME, ANY_COOKIE))
        if message is not None:  # None: of another family
            is_known, listens = True, message[UNIX_STATE_AT] == TCP_LISTEN
            attributes = records(message[UNIX_MESSAGE_BYTES:], ATTRIBUTE)
            if listens and any(kind == UNIX_DIAG_NAME and name.rstrip(b"\0") in names for kind, name in attributes):
                return True
    return False if is_known else None


def find_peer(own: socket.socket) -> Peer | None:
    """The socket at the other end. None where it is not on this machine, or no process has accepted the connection yet.

    Raises OSError, also where this kernel has no tcp_diag.
    """
    local, remote = own.getsockname(), own.getpeername()
    answer = query_one(_pack_connection(own.family, remote, local))
    if answer is None and query_one(_pack_connection(own.family, local, remote)) is None:
        own.getpeername()  # raises OSError where the connection has ended, which the kernel does not know either
        raise FileNotFoundError("this kernel has no tcp_diag: sudo modprobe tcp_diag")
    if answer is None or len(answer) < MESSAGE_BYTES or answer[1] not in (TCP_ESTABLISHED, TCP_CLOSE_WAIT):
        return None
    inode = int.from_bytes(answer[INODE_AT:MESSAGE_BYTES], "little")
    return Peer(int.from_bytes(answer[UID_AT:INODE_AT], "little"), inode) if inode else None


def _pack_connection(family: int, *ends: tuple[str, int]) -> bytes:
    ports = (end[1].to_bytes(2, "big") for end in ends)
    addresses = (ip_address(end[0].partition("%")[0]).packed for end in ends)
    return REQUEST.pack(family, socket.IPPROTO_TCP, 0, 0, *ports, *addresses, bytes(4) + ANY_COOKIE)


def read_unanswered(port: int) -> tuple[PendingRequest, ...]:
    """Requests to this local port whose last byte was followed by no data, or by some within BEGIN_MILLISECONDS alone.

    The kernel reports when data last came and went on each TCP connection of this network namespace, not what it was.
    So a stream does not count. A slow upload counts, and so does a connection that is idle after an answer, which has
    begun. Raises OSError.
    """
    states = 1 << TCP_ESTABLISHED | 1 << TCP_CLOSE_WAIT
    clocks = (
        TCP_INFO.unpack_from(value)
        for family in (socket.AF_INET, socket.AF_INET6)
        for message in dump_connections(family, states, 1 << (INET_DIAG_INFO - 1), port)
        for kind, value in records(message[MESSAGE_BYTES:], ATTRIBUTE)
        if kind == INET_DIAG_INFO and len(value) >= TCP_INFO.size
    )
    return tuple(
        PendingRequest(ms_since_received / 1000, begun=bool(segments_sent) and ms_since_sent <= ms_since_received)
        for ms_since_sent, ms_since_received, segments_received, segments_sent in clocks
        # Without a segment sent, ms_since_sent is 0.
        if segments_received and (not segments_sent or ms_since_received <= ms_since_sent + BEGIN_MILLISECONDS)
    )
