"""Questions to the kernel by netlink(7), and the sockets of this network namespace by sock_diag(7)."""

import os
import socket
import struct
from collections.abc import Iterator
from contextlib import suppress
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import NamedTuple

NETLINK_SOCK_DIAG, SOCK_DIAG_BY_FAMILY = 4, 20
NLM_F_REQUEST, NLM_F_DUMP, NLMSG_ERROR, NLMSG_DONE = 0x1, 0x300, 2, 3
TCP_ESTABLISHED, TCP_CLOSE_WAIT, TCP_LISTEN = 1, 8, 10
WITH_PORT = sum(1 << state for state in (TCP_ESTABLISHED, 2, 4, 5, TCP_CLOSE_WAIT, 9, 11, 13))
"""States of sockets that have a port and do not listen, by net/tcp_states.h. Since 6.8 Linux lists those only bound,
13, too, of all ports."""
INET_DIAG_INFO, INET_DIAG_SKV6ONLY, UDIAG_SHOW_NAME, UNIX_DIAG_NAME = 2, 11, 1, 0
"""Constants of linux/netlink.h, net/tcp_states.h, linux/sock_diag.h, inet_diag.h and unix_diag.h."""
HEADER, ATTRIBUTE = struct.Struct("=IHHII"), struct.Struct("=HH")
_TCP_REQUEST, _TCP_MESSAGE = struct.Struct("=BBBxI2s2s16s16s12s"), struct.Struct("=BBxx2s2x16s40xII")
"""inet_diag_req_v2, and of inet_diag_msg: family, state, local port and address, uid, inode."""
_UNIX_REQUEST, _UNIX_MESSAGE = struct.Struct("=BBHIII8s"), struct.Struct("=xxBx12x")
"""unix_diag_req, and of unix_diag_msg the state."""
_TCP_INFO = struct.Struct("=44xI4xI96xII")
_ANY_COOKIE = b"\xff" * 8
_ERROR = struct.Struct("=i")
CHUNK_BYTES, MOST_CHUNKS = 64 << 10, 256
"""Some 80,000 sockets."""


class TcpInfo(NamedTuple):
    """Parts of tcp_info. Without a segment of data sent, `ms_since_sent` is 0."""

    ms_since_sent: int
    ms_since_received: int
    segments_received: int
    segments_sent: int


class TcpSocket(NamedTuple):
    state: int
    address: str
    """The local one, as is the port."""
    port: int
    uid: int
    inode: int
    """0 for a connection that no process has accepted yet."""
    attributes: dict[int, bytes]

    @property
    def info(self) -> TcpInfo | None:
        """None unless it was requested, and from a kernel that has not all of it."""
        info = self.attributes.get(INET_DIAG_INFO, b"")
        return TcpInfo(*_TCP_INFO.unpack_from(info)) if len(info) >= _TCP_INFO.size else None


def dump_tcp(
    family: int, states: int, *, info: bool = False, port: int = 0, most_chunks: int = MOST_CHUNKS
) -> Iterator[TcpSocket]:
    """TCP sockets of these states (a bit each), of a local port or of all. Raises OSError as `query_kernel`."""
    extensions = 1 << (INET_DIAG_INFO - 1) if info else 0
    local_port = port.to_bytes(2, "big")
    request = _TCP_REQUEST.pack(family, socket.IPPROTO_TCP, extensions, states, local_port, b"", b"", b"", b"")
    return map(_parse_tcp, query_kernel(request, NLM_F_DUMP, most_chunks=most_chunks))


def find_tcp(family: int, local: tuple[str, int], remote: tuple[str, int]) -> TcpSocket | None:
    """The TCP socket with these ends; None without such a socket. Raises OSError."""
    ports = (end[1].to_bytes(2, "big") for end in (local, remote))
    addresses = (ip_address(end[0].partition("%")[0]).packed for end in (local, remote))
    request = _TCP_REQUEST.pack(family, socket.IPPROTO_TCP, 0, 0, *ports, *addresses, bytes(4) + _ANY_COOKIE)
    message = _query_one(request)
    return None if message is None else _parse_tcp(message)


def find_listening_name(inode: int) -> bytes | None:
    """The name under which a Unix socket listens; empty where it does not, None where the inode is no Unix socket's.

    Raises OSError.
    """
    message = _query_one(_UNIX_REQUEST.pack(socket.AF_UNIX, 0, 0, 0, inode, UDIAG_SHOW_NAME, _ANY_COOKIE))
    if message is None:
        return None
    (state,) = _UNIX_MESSAGE.unpack_from(message)
    name = dict(records(message[_UNIX_MESSAGE.size :], ATTRIBUTE)).get(UNIX_DIAG_NAME, b"").rstrip(b"\0")
    return name if state == TCP_LISTEN else b""


def _parse_tcp(message: bytes) -> TcpSocket:
    family, state, port, raw_address, uid, inode = _TCP_MESSAGE.unpack_from(message)
    address = IPv4Address(raw_address[:4]) if family == socket.AF_INET else IPv6Address(raw_address)
    attributes = dict(records(message[_TCP_MESSAGE.size :], ATTRIBUTE))
    return TcpSocket(state, str(address), int.from_bytes(port, "big"), uid, inode, attributes)


def _query_one(body: bytes) -> bytes | None:
    with suppress(FileNotFoundError):
        return next(query_kernel(body, 0), None)
    return None


def query_kernel(
    body: bytes,
    flags: int,
    protocol: int = NETLINK_SOCK_DIAG,
    request_type: int = SOCK_DIAG_BY_FAMILY,
    most_chunks: int = MOST_CHUNKS,
) -> Iterator[bytes]:
    """The kernel's answer by netlink(7): one message, or all of a table with the flag NLM_F_DUMP.

    Raises OSError: TimeoutError where the table is longer than can be read.
    """
    header = HEADER.pack(HEADER.size + len(body), request_type, NLM_F_REQUEST | flags, 1, 0)
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, protocol) as kernel:
        kernel.settimeout(1.0)
        kernel.send(header + body)
        for _ in range(most_chunks):
            for kind, message in records(kernel.recv(CHUNK_BYTES), HEADER):
                if kind in (NLMSG_ERROR, NLMSG_DONE):
                    if error_number := -_ERROR.unpack_from(message)[0]:  # a table that failed ends with it, too
                        raise OSError(error_number, os.strerror(error_number))
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
