"""The socket at the other end of a TCP connection within this machine, and the process that has it open.

By sock_diag(7), in one request for one socket: no table that other users may grow is read.
"""

from __future__ import annotations

import socket
import struct
from contextlib import suppress
from ipaddress import ip_address

from msgspec import Struct

from sparkd.host.files import Files
from sparkd.host.processes import GONE
from sparkd.host.sockets import ANY_COOKIE, INODE_AT, MESSAGE_BYTES, TCP_CLOSE_WAIT, TCP_ESTABLISHED, UID_AT, query

EXACT = struct.Struct("!BBBxI HH16s16s 12s")
"""inet_diag_req_v2 for one socket: family, protocol, no extensions, any state; its own port and the other end's, its
own address and the other end's, any interface and cookie."""


class Peer(Struct, frozen=True):
    """The other end of a connection, which a process of this machine has accepted."""

    uid: int
    """Of the process that made it."""
    inode: int


def find_peer(own: socket.socket) -> Peer | None:
    """None where no process has accepted the connection yet, or the other end is not on this machine.

    Raises OSError.
    """
    (here, port, *_), (there, to_port, *_) = own.getsockname(), own.getpeername()
    addresses = (ip_address(text.partition("%")[0]).packed for text in (there, here))
    question = EXACT.pack(own.family, socket.IPPROTO_TCP, 0, 0, to_port, port, *addresses, bytes(4) + ANY_COOKIE)
    found = b""
    with suppress(FileNotFoundError):
        (found,) = query(question, 0)
    if len(found) < MESSAGE_BYTES or found[1] not in (TCP_ESTABLISHED, TCP_CLOSE_WAIT):
        return None
    inode = int.from_bytes(found[INODE_AT:MESSAGE_BYTES], "little")
    return Peer(int.from_bytes(found[UID_AT:INODE_AT], "little"), inode) if inode else None


def has_open(files: Files, pid: int, inode: int) -> bool:
    """Whether a process has this socket open; not where it has ended. Raises OSError."""
    try:
        return any(target == f"socket:[{inode}]" for _, target in files.links(f"/proc/{pid}/fd"))
    except GONE:
        return False
