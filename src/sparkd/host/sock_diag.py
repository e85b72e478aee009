"""What /proc/net does not say of a listening socket: whether it is for IPv6 alone. Asked of the kernel (sock_diag(7)).

A socket of `::` holds its port for IPv4 too, unless its program has set IPV6_V6ONLY.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator

NETLINK_SOCK_DIAG = 4
SOCK_DIAG_BY_FAMILY = 20
NLM_F_REQUEST, NLM_F_DUMP = 0x1, 0x300
NLMSG_ERROR, NLMSG_DONE = 2, 3
TCP_LISTEN = 10
INET_DIAG_SKV6ONLY = 11
"""linux/sock_diag.h, netlink.h, inet_diag.h. The kernel tells the last of each socket that listens."""
HEADER = struct.Struct("=IHHII")
ATTRIBUTE = struct.Struct("=HH")
REQUEST = struct.Struct("=BBBBI48x")
MESSAGE_BYTES, INODE_AT = 72, 68
"""inet_diag_msg; its last word is the inode."""
ANSWER_SECONDS = 1.0
CHUNK_BYTES = 64 << 10
MOST_CHUNKS = 256


def only_ipv6() -> frozenset[int]:
    """Inodes of the TCP sockets of this network namespace that listen for IPv6 alone. Raises OSError."""
    body = REQUEST.pack(socket.AF_INET6, socket.IPPROTO_TCP, 0, 0, 1 << TCP_LISTEN)
    head = HEADER.pack(HEADER.size + len(body), SOCK_DIAG_BY_FAMILY, NLM_F_REQUEST | NLM_F_DUMP, 1, 0)
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, NETLINK_SOCK_DIAG) as kernel:
        kernel.settimeout(ANSWER_SECONDS)
        kernel.send(head + body)
        return frozenset(inode for message in _messages(kernel) if (inode := _if_only_ipv6(message)))


def _messages(kernel: socket.socket) -> Iterator[bytes]:
    for _ in range(MOST_CHUNKS):
        chunk = kernel.recv(CHUNK_BYTES)
        while len(chunk) >= HEADER.size:
            length, kind, *_ = HEADER.unpack_from(chunk)
            if kind in (NLMSG_DONE, NLMSG_ERROR) or length < HEADER.size:
                return
            yield chunk[HEADER.size : length]
            chunk = chunk[_aligned(length) :]


def _if_only_ipv6(message: bytes) -> int:
    """Its inode, or 0."""
    if len(message) < MESSAGE_BYTES:
        return 0
    attributes = message[MESSAGE_BYTES:]
    while len(attributes) >= ATTRIBUTE.size:
        length, kind = ATTRIBUTE.unpack_from(attributes)
        if kind == INET_DIAG_SKV6ONLY:
            return int.from_bytes(message[INODE_AT:MESSAGE_BYTES], "little") if any(attributes[4:length]) else 0
        attributes = attributes[max(_aligned(length), ATTRIBUTE.size) :]
    return 0


def _aligned(length: int) -> int:
    return (length + 3) & ~3
