"""Listening TCP ports, the processes that hold them, and connections on which a request waits for its answer."""

from __future__ import annotations

import os
import re
import socket
import struct
from collections.abc import Container, Iterable, Iterator
from contextlib import suppress
from ipaddress import IPv4Address, IPv6Address, ip_address
from itertools import product

from msgspec import Struct

from sparkd.base.host.files import Files
from sparkd.base.host.processes import GONE, Process, open_files, overgrown

_LISTENING = re.compile(
    r"^ *\d+: ([0-9A-F]{8}|[0-9A-F]{32}):([0-9A-F]{4}) \S+ 0A \S+ \S+ \S+ +\d+ +\d+ +(\d+)\b", re.MULTILINE
)
"""Address and port, TCP_LISTEN, the socket's inode: proc(5)."""
TABLE_BYTES = 16 << 20
"""Some 100,000 sockets."""

NETLINK_SOCK_DIAG, SOCK_DIAG_BY_FAMILY, INET_DIAG_INFO, INET_DIAG_SKV6ONLY = 4, 20, 2, 11
NLM_F_REQUEST, NLM_F_DUMP, NLMSG_ERROR, NLMSG_DONE = 0x1, 0x300, 2, 3
TCP_ESTABLISHED, TCP_CLOSE_WAIT, TCP_LISTEN = 1, 8, 10
"""Constants of linux/sock_diag.h, inet_diag.h, netlink.h and net/tcp_states.h."""
HEADER, ATTRIBUTE, REQUEST = struct.Struct("=IHHII"), struct.Struct("=HH"), struct.Struct("=BBBxI2s2s16s16s12s")
PORT_AT, ADDRESS_AT, UID_AT, INODE_AT, MESSAGE_BYTES = 4, 8, 64, 68, 72
"""Places in inet_diag_msg, which ends with the inode."""
UNIX_REQUEST, UNIX_MESSAGE_BYTES, UDIAG_SHOW_NAME, UNIX_DIAG_NAME = struct.Struct("=BBHIII8s"), 16, 1, 0
"""linux/unix_diag.h. The third byte of unix_diag_msg is the state."""
ANY_COOKIE = b"\xff" * 8
ERROR = struct.Struct("=i")
TCP_INFO = struct.Struct("=44xI4xI96xII")
"""tcp_info: milliseconds since data was last sent and received, how many segments of data came and went."""
BEGIN_MILLISECONDS = 1000
"""A server that streams sends its headers at once, or when it has tokenized the prompt: its first token comes later."""
ANSWER_SECONDS = 1.0
CHUNK_BYTES = 64 << 10
MOST_CHUNKS = 256
"""Some 80,000 sockets."""


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


class Unanswered(Struct, frozen=True):
    """A request, `seconds` after its last byte came. `begun`: its answer may have begun, by headers or some text."""

    seconds: float
    begun: bool = False


UNKNOWN = (Unanswered(2.0),)
"""What stands for requests that can't be listed: one that is old enough for a canary."""


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


def has_open(files: Files, pid: int, inodes: Container[int]) -> bool:
    """Whether a process has one of these sockets open; False once it has ended. Raises OSError."""
    try:
        opened = (target for _, target in files.links(f"/proc/{pid}/fd") if target.startswith("socket:["))
        return any(int(target[8:-1]) in inodes for target in opened)
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
            for message in _dump(family, 1 << TCP_LISTEN, port=port):
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


def find_listening(inodes: Iterable[int], names: Container[bytes]) -> bool | None:
    """Whether one of these Unix sockets listens under one of these names. No table is read: the kernel looks up each.

    None where the kernel knows none of them, as one without unix_diag. Raises OSError.
    """
    answer = None
    for inode in inodes:
        message = _query_one(UNIX_REQUEST.pack(socket.AF_UNIX, 0, 0, 0, inode, UDIAG_SHOW_NAME, ANY_COOKIE))
        if message is not None:  # None: of another family
            answer, listens = answer or False, message[2] == TCP_LISTEN
            attributes = records(message[UNIX_MESSAGE_BYTES:], ATTRIBUTE)
            if listens and any(kind == UNIX_DIAG_NAME and name.rstrip(b"\0") in names for kind, name in attributes):
                return True
    return answer


def find_peer(own: socket.socket) -> Peer | None:
    """The socket at the other end. None where it is not on this machine, or no process has accepted the connection yet.

    Raises OSError, also where this kernel has no tcp_diag.
    """
    local, remote = own.getsockname(), own.getpeername()
    answer = _query_one(_pack_connection(own.family, remote, local))
    if answer is None and _query_one(_pack_connection(own.family, local, remote)) is None and own.getpeername():
        raise FileNotFoundError("this kernel has no tcp_diag: sudo modprobe tcp_diag")
    if answer is None or len(answer) < MESSAGE_BYTES or answer[1] not in (TCP_ESTABLISHED, TCP_CLOSE_WAIT):
        return None
    inode = int.from_bytes(answer[INODE_AT:MESSAGE_BYTES], "little")
    return Peer(int.from_bytes(answer[UID_AT:INODE_AT], "little"), inode) if inode else None


def _pack_connection(family: int, *ends: tuple[str, int]) -> bytes:
    ports = (end[1].to_bytes(2, "big") for end in ends)
    addresses = (ip_address(end[0].partition("%")[0]).packed for end in ends)
    return REQUEST.pack(family, socket.IPPROTO_TCP, 0, 0, *ports, *addresses, bytes(4) + ANY_COOKIE)


def read_unanswered(port: int) -> tuple[Unanswered, ...]:
    """Requests to this local port to which nothing was sent later than BEGIN_MILLISECONDS. Raises OSError.

    They are seen by the TCP connections of this network namespace. A connection with a stream has been sent data later,
    and does not count. One that uploads slowly counts, and so does one that is idle after an answer, which has begun.
    """
    states = 1 << TCP_ESTABLISHED | 1 << TCP_CLOSE_WAIT
    clocks = (
        TCP_INFO.unpack_from(value)
        for family in (socket.AF_INET, socket.AF_INET6)
        for message in _dump(family, states, 1 << (INET_DIAG_INFO - 1), port)
        for kind, value in records(message[MESSAGE_BYTES:], ATTRIBUTE)
        if kind == INET_DIAG_INFO and len(value) >= TCP_INFO.size
    )
    return tuple(
        Unanswered(received_ms / 1000, begun=bool(sent) and sent_ms <= received_ms)
        for sent_ms, received_ms, received, sent in clocks
        if received and (not sent or received_ms <= sent_ms + BEGIN_MILLISECONDS)  # of a new connection, sent_ms is 0
    )


def _dump(family: int, states: int, extensions: int = 0, port: int = 0) -> Iterator[bytes]:
    wanted = REQUEST.pack(family, socket.IPPROTO_TCP, extensions, states, port.to_bytes(2, "big"), b"", b"", b"", b"")
    return query_kernel(wanted, NLM_F_DUMP)


def _query_one(body: bytes) -> bytes | None:
    """The kernel's description of the one socket that `body` names; None without such a socket. Raises OSError."""
    with suppress(FileNotFoundError):
        return next(query_kernel(body, 0), None)
    return None


def query_kernel(
    body: bytes, flags: int, protocol: int = NETLINK_SOCK_DIAG, wanted: int = SOCK_DIAG_BY_FAMILY
) -> Iterator[bytes]:
    """The kernel's answer by netlink(7). Raises OSError: TimeoutError where it is longer than can be read."""
    header = HEADER.pack(HEADER.size + len(body), wanted, NLM_F_REQUEST | flags, 1, 0)
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, protocol) as kernel:
        kernel.settimeout(ANSWER_SECONDS)
        kernel.send(header + body)
        for _ in range(MOST_CHUNKS):
            for kind, message in records(kernel.recv(CHUNK_BYTES), HEADER):
                if kind == NLMSG_ERROR:
                    error_number = -ERROR.unpack_from(message)[0]
                    raise OSError(error_number, os.strerror(error_number))
                if kind == NLMSG_DONE:
                    return
                yield message
            if not flags:
                return
    raise TimeoutError


def records(packed: bytes, header: struct.Struct) -> Iterator[tuple[int, bytes]]:
    """Kind and content of each message, or of each attribute of one: both are padded to four bytes."""
    while len(packed) >= header.size:
        length, kind, *_ = header.unpack_from(packed)
        if length < header.size:
            return
        yield kind, packed[header.size : length]
        packed = packed[(length + 3) & ~3 :]
