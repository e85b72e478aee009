"""DNS servers that programs on this machine ask, and whether they answer.

A tree of files carries the answers in /.sparkd/resolver.json: server -> whether it answered.
"""

from __future__ import annotations

import errno
import secrets
import selectors
import socket
import struct
import time
from collections.abc import Mapping
from contextlib import ExitStack
from ipaddress import ip_address
from typing import TYPE_CHECKING

from sparkd.host import addresses, recorded

if TYPE_CHECKING:
    from sparkd.host import Host
    from sparkd.host.files import Files

CONFIG = "/etc/resolv.conf"
UPSTREAM = "/run/systemd/resolve/resolv.conf"
STUB = "127.0.0.53"
RECORD = "resolver"
MAX_SERVERS = 3
"""MAXNS of glibc: it reads no more."""
PORT = 53
ALL_SECONDS = 0.3
SENT_AT_SECONDS = (0.0, 0.15)
"""Anew while there is no answer: a packet may be lost."""
LIMIT_BYTES = 64 << 10


def servers(files: Files) -> tuple[str, ...]:
    """As a container in the host's network has them. Docker gives it /etc/resolv.conf; where that names systemd's stub
    alone, the servers behind the stub. Raises OSError where a file can't be read.
    """
    found = _servers(files, CONFIG)
    return _servers(files, UPSTREAM) or found if found == (STUB,) else found


def answers(host: Host, asked: tuple[str, ...], about: str) -> Mapping[str, bool]:
    """Whether each server answers who has the address `about`; empty where a tree does not tell."""
    return ask(asked, about) if host.live else recorded.by_address(host.files, RECORD)


def ask(asked: tuple[str, ...], about: str, port: int = PORT) -> dict[str, bool]:
    """All at once, in `ALL_SECONDS` at most. A refusal is an answer: what costs a start is silence."""
    began = time.monotonic()
    query = _query(about)
    answered = dict.fromkeys(asked, False)
    with ExitStack() as closing, selectors.DefaultSelector() as selector:
        sockets: dict[str, socket.socket] = {}
        for server in asked:
            sock = _socket(server)
            if sock is None:
                answered[server] = True
            else:
                sockets[server] = closing.enter_context(sock)
                selector.register(sock, selectors.EVENT_READ, server)
        for until in (*SENT_AT_SECONDS[1:], ALL_SECONDS):
            for server in asked:
                if not answered[server]:
                    answered[server] = not _sent(sockets[server], server, port, query)
            while not all(answered.values()) and (left := began + until - time.monotonic()) > 0:
                for key, _ in selector.select(left):
                    answered[key.data] = answered[key.data] or _heard(sockets[key.data], query)
    return answered


def _socket(server: str) -> socket.socket | None:
    """None where this kernel has no IPv6: then nobody waits for such a server either."""
    family = socket.AF_INET6 if ":" in server else socket.AF_INET
    try:
        return socket.socket(family, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
    except OSError as error:
        if error.errno != errno.EAFNOSUPPORT:
            raise
        return None


def _sent(sock: socket.socket, server: str, port: int, query: bytes) -> bool:
    """False where the kernel knows at once that nobody can be asked: then nobody waits."""
    try:
        sock.connect((server, port))
        sock.send(query)
    except OSError:
        return False
    return True


def _heard(sock: socket.socket, query: bytes) -> bool:
    try:
        return sock.recv(4096)[:2] == query[:2]
    except BlockingIOError:
        return False
    except OSError:  # refused
        return True


def _query(about: str) -> bytes:
    """What torch's rendezvous asks: the name of a node's address. Of a private one, a server knows that by itself."""
    name = ip_address(addresses.canonical(about)).reverse_pointer
    labels = b"".join(bytes([len(label)]) + label.encode("ascii") for label in name.split("."))
    recursion_desired, pointer, internet = 0x0100, 12, 1
    head = struct.pack(">HHHHHH", secrets.randbits(16), recursion_desired, 1, 0, 0, 0)
    return head + labels + b"\0" + struct.pack(">HH", pointer, internet)


def _servers(files: Files, path: str) -> tuple[str, ...]:
    try:
        lines = files.text(path, limit=LIMIT_BYTES).splitlines()
    except (FileNotFoundError, NotADirectoryError):
        return ()
    words = (line.split() for line in lines)
    named = (line[1] for line in words if len(line) > 1 and line[0] == "nameserver")
    return tuple(dict.fromkeys(one for one in named if _is_address(one)))[:MAX_SERVERS]


def _is_address(text: str) -> bool:
    try:
        ip_address(text)
    except ValueError:
        return False
    return True
