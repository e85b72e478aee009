"""Listening TCP ports, the processes that hold them, and connections on which a request waits for its answer."""

from __future__ import annotations

import re
import socket
import struct
from collections.abc import Iterable, Iterator
from ipaddress import IPv4Address, IPv6Address

from msgspec import Struct

from sparkd.host.files import Files
from sparkd.host.processes import Process, open_files

_LISTENING = re.compile(
    r"^ *\d+: ([0-9A-F]{8}|[0-9A-F]{32}):([0-9A-F]{4}) \S+ 0A \S+ \S+ \S+ +\d+ +\d+ +(\d+)\b", re.MULTILINE
)
"""Address and port, TCP_LISTEN, the socket's inode: proc(5)."""
_SOCKET = re.compile(r"socket:\[(\d+)\]\Z")

NETLINK_SOCK_DIAG, SOCK_DIAG_BY_FAMILY, INET_DIAG_INFO, INET_DIAG_SKV6ONLY = 4, 20, 2, 11
NLM_F_REQUEST, NLM_F_DUMP, NLMSG_ERROR, NLMSG_DONE = 0x1, 0x300, 2, 3
TCP_ESTABLISHED, TCP_CLOSE_WAIT, TCP_LISTEN = 1, 8, 10
"""linux/sock_diag.h, inet_diag.h, netlink.h, net/tcp_states.h."""
HEADER, ATTRIBUTE, REQUEST = struct.Struct("=IHHII"), struct.Struct("=HH"), struct.Struct("=BBBBI2s46x")
MESSAGE_BYTES, INODE_AT = 72, 68
"""inet_diag_msg; its last word is the inode."""
TCP_INFO = struct.Struct("=44xI4xI96xII")
"""tcp_info: milliseconds since data was last sent and received, how many segments of data came and went."""
BEGIN_MILLISECONDS = 1000
"""A server that streams sends its headers at once, or when it has tokenized the prompt: its first token comes later."""
ANSWER_SECONDS = 1.0
CHUNK_BYTES = 64 << 10
MOST_CHUNKS = 256


class Listener(Struct, frozen=True):
    address: str
    port: int
    inode: int


class Holder(Struct, frozen=True):
    listener: Listener
    pid: int


class Unanswered(Struct, frozen=True):
    """A request, `seconds` after its last byte came. `begun`: headers may have been sent, or a short answer."""

    seconds: float
    begun: bool = False


def read_listeners(files: Files) -> tuple[Listener, ...]:
    """Of every address. /proc does not show a socket that is bound but does not listen yet."""
    ipv6 = files.text_if_any("/proc/net/tcp6", limit=64 << 20) or ""  # none in a kernel without it
    found = _LISTENING.findall(files.text("/proc/net/tcp", limit=64 << 20)) + _LISTENING.findall(ipv6)
    return tuple(Listener(_address(address), int(port, 16), int(inode)) for address, port, inode in found)


def _address(text: str) -> str:
    """The kernel prints each 32-bit word in the machine's byte order: little-endian on all supported machines."""
    raw = bytes.fromhex(text)
    swapped = b"".join(raw[at : at + 4][::-1] for at in range(0, len(raw), 4))
    return str(IPv4Address(swapped) if len(raw) == 4 else IPv6Address(swapped))


def find_holders(files: Files, processes: Iterable[Process], wanted: tuple[Listener, ...]) -> tuple[Holder, ...]:
    """Processes that have these sockets open, of those that are readable."""
    by_inode = {str(listener.inode): listener for listener in wanted}
    opened = ((_SOCKET.match(file.target), file.pid) for file in open_files(files, processes).found)
    found = (Holder(by_inode[match[1]], pid) for match, pid in opened if match and match[1] in by_inode)
    return tuple(dict.fromkeys(found))


def only_ipv6() -> frozenset[int]:
    """Inodes of this network namespace's TCP sockets that listen for IPv6 alone. Raises OSError.

    A socket of `::` holds its port for IPv4 too, unless its program has set IPV6_V6ONLY. /proc does not show that;
    sock_diag(7) does.
    """
    return frozenset(
        int.from_bytes(message[INODE_AT:MESSAGE_BYTES], "little")
        for message in _dump(socket.AF_INET6, 1 << TCP_LISTEN)
        for kind, value in _records(message[MESSAGE_BYTES:], ATTRIBUTE)
        if kind == INET_DIAG_SKV6ONLY and any(value)
    )


def read_unanswered(port: int) -> tuple[Unanswered, ...]:
    """Requests to this local port to which nothing was sent later than BEGIN_MILLISECONDS. Raises OSError.

    Of this network namespace's TCP connections. One that is streamed to has been sent data later; one that uploads
    slowly counts too, and so does one that is idle after an answer, which has begun.
    """
    states = 1 << TCP_ESTABLISHED | 1 << TCP_CLOSE_WAIT
    clocks = (
        TCP_INFO.unpack_from(value)
        for family in (socket.AF_INET, socket.AF_INET6)
        for message in _dump(family, states, 1 << (INET_DIAG_INFO - 1), port)
        for kind, value in _records(message[MESSAGE_BYTES:], ATTRIBUTE)
        if kind == INET_DIAG_INFO and len(value) >= TCP_INFO.size
    )
    return tuple(
        Unanswered(received_ms / 1000, begun=bool(sent) and sent_ms <= received_ms)
        for sent_ms, received_ms, received, sent in clocks
        if received and (not sent or received_ms <= sent_ms + BEGIN_MILLISECONDS)  # of a new connection, sent_ms is 0
    )


def _dump(family: int, states: int, extensions: int = 0, port: int = 0) -> Iterator[bytes]:
    body = REQUEST.pack(family, socket.IPPROTO_TCP, extensions, 0, states, port.to_bytes(2, "big"))
    head = HEADER.pack(HEADER.size + len(body), SOCK_DIAG_BY_FAMILY, NLM_F_REQUEST | NLM_F_DUMP, 1, 0)
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, NETLINK_SOCK_DIAG) as kernel:
        kernel.settimeout(ANSWER_SECONDS)
        kernel.send(head + body)
        yield from _messages(kernel)


def _messages(kernel: socket.socket) -> Iterator[bytes]:
    for _ in range(MOST_CHUNKS):
        for kind, message in _records(kernel.recv(CHUNK_BYTES), HEADER):
            if kind in (NLMSG_DONE, NLMSG_ERROR):
                return
            yield message


def _records(data: bytes, header: struct.Struct) -> Iterator[tuple[int, bytes]]:
    """Messages, or the attributes of one: both begin with length and kind, and are padded to four bytes."""
    while len(data) >= header.size:
        length, kind, *_ = header.unpack_from(data)
        if length < header.size:
            return
        yield kind, data[header.size : length]
        data = data[(length + 3) & ~3 :]
