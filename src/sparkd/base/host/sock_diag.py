"""Questions to the kernel by netlink(7): its sockets by sock_diag(7), and the layout of its answers."""

import os
import socket
import struct
from collections.abc import Iterator
from contextlib import suppress

NETLINK_SOCK_DIAG, SOCK_DIAG_BY_FAMILY, INET_DIAG_INFO, INET_DIAG_SKV6ONLY = 4, 20, 2, 11
NLM_F_REQUEST, NLM_F_DUMP, NLMSG_ERROR, NLMSG_DONE = 0x1, 0x300, 2, 3
TCP_ESTABLISHED, TCP_CLOSE_WAIT, TCP_LISTEN = 1, 8, 10
"""Constants of linux/sock_diag.h, inet_diag.h, netlink.h and net/tcp_states.h."""
HEADER, ATTRIBUTE, REQUEST = struct.Struct("=IHHII"), struct.Struct("=HH"), struct.Struct("=BBBxI2s2s16s16s12s")
PORT_AT, ADDRESS_AT, UID_AT, INODE_AT, MESSAGE_BYTES = 4, 8, 64, 68, 72
"""Places in inet_diag_msg, which ends with the inode."""
UNIX_REQUEST, UDIAG_SHOW_NAME, UNIX_DIAG_NAME = struct.Struct("=BBHIII8s"), 1, 0
"""linux/unix_diag.h."""
UNIX_STATE_AT, UNIX_MESSAGE_BYTES = 2, 16
"""Place in unix_diag_msg, and its size."""
ANY_COOKIE = b"\xff" * 8
ERROR = struct.Struct("=i")
TCP_INFO = struct.Struct("=44xI4xI96xII")
"""tcp_info: milliseconds since data was last sent and received, how many segments of data came and went."""
ANSWER_SECONDS = 1.0
CHUNK_BYTES = 64 << 10
MOST_CHUNKS = 256
"""Some 80,000 sockets."""


def dump_connections(family: int, states: int, extensions: int = 0, port: int = 0) -> Iterator[bytes]:
    """TCP sockets of these states, of a local port or of all. Raises OSError as `query_kernel`."""
    body = REQUEST.pack(family, socket.IPPROTO_TCP, extensions, states, port.to_bytes(2, "big"), b"", b"", b"", b"")
    return query_kernel(body, NLM_F_DUMP)


def query_one(body: bytes) -> bytes | None:
    """The kernel's description of the one socket that `body` names; None without such a socket. Raises OSError."""
    with suppress(FileNotFoundError):
        return next(query_kernel(body, 0), None)
    return None


def query_kernel(
    body: bytes, flags: int, protocol: int = NETLINK_SOCK_DIAG, request_type: int = SOCK_DIAG_BY_FAMILY
) -> Iterator[bytes]:
    """The kernel's answer by netlink(7): one message, or all of a table with the flag NLM_F_DUMP.

    Raises OSError: TimeoutError where the table is longer than can be read.
    """
    header = HEADER.pack(HEADER.size + len(body), request_type, NLM_F_REQUEST | flags, 1, 0)
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
