"""DNS servers of this machine's programs, and whether they answer.

A tree of files holds the answers in /.sparkd/resolver.json: server -> whether it answered.
"""

from __future__ import annotations

import errno
import secrets
import struct
from collections.abc import Mapping
from contextlib import ExitStack, closing, suppress
from ipaddress import ip_address
from typing import TYPE_CHECKING

from sparkd.host import network
from sparkd.host.path_mtu import Datagram, exchange, read_recorded

if TYPE_CHECKING:
    from sparkd.host import Host
    from sparkd.host.files import Files

CONFIG = "/etc/resolv.conf"
UPSTREAM = "/run/systemd/resolve/resolv.conf"
STUB = "127.0.0.53"
MAX_SERVERS = 3
"""MAXNS of glibc, which ignores more."""
PORT = 53
ALL_SECONDS = 0.3
SENT_AT_SECONDS = (0.0, 0.15)
"""Repeated until an answer comes: a packet may be lost."""
LIMIT_BYTES = 64 << 10


def read_servers(files: Files) -> tuple[str, ...]:
    """Of a container in the host's network: those of /etc/resolv.conf; where that lists systemd's stub alone, docker
    takes the servers behind the stub. Raises OSError.
    """
    found = _read_servers(files, CONFIG)
    return _read_servers(files, UPSTREAM) or found if found == (STUB,) else found


def query_servers(host: Host, servers: tuple[str, ...], address: str) -> Mapping[str, bool]:
    """Whether each server answers a reverse lookup of the address; empty where a tree has no record."""
    return query_network(servers, address) if host.live else read_recorded(host.files, "resolver")


def query_network(servers: tuple[str, ...], address: str, port: int = PORT) -> dict[str, bool]:
    """All at once, in `ALL_SECONDS` at most. A refusal is an answer: only silence delays a start."""
    query = _reverse_query(address)
    answered = dict.fromkeys(servers, True)
    with ExitStack() as stack:
        queries = []
        for server in servers:
            try:
                datagram = _DnsQuery((server, port), SENT_AT_SECONDS, query)
            except OSError as error:
                if (
                    error.errno != errno.EAFNOSUPPORT
                ):  # a kernel without IPv6: programs do not wait for such a server either
                    raise
            else:
                queries.append(stack.enter_context(closing(datagram)))
        exchange([(one,) for one in queries], ALL_SECONDS)
    return answered | {one.address: one.decided for one in queries}


class _DnsQuery(Datagram):
    def received(self, answer: bytes) -> None:
        if answer[:2] == self.content[:2]:
            self.arrived = True

    def failed(self, _error: OSError) -> None:
        """Refused, or no route: programs do not wait for it either."""
        self.arrived = True


def _reverse_query(address: str) -> bytes:
    """The query of torch's rendezvous: the name of a node's address. For a private one, a server answers by itself."""
    name = ip_address(network.canonical(address)).reverse_pointer
    labels = b"".join(bytes([len(label)]) + label.encode("ascii") for label in name.split("."))
    recursion_desired, pointer, internet = 0x0100, 12, 1
    head = struct.pack(">HHHHHH", secrets.randbits(16), recursion_desired, 1, 0, 0, 0)
    return head + labels + b"\0" + struct.pack(">HH", pointer, internet)


def _read_servers(files: Files, path: str) -> tuple[str, ...]:
    try:
        words = [line.split() for line in files.text(path, limit=LIMIT_BYTES).splitlines()]
    except (FileNotFoundError, NotADirectoryError):
        return ()
    found: dict[str, None] = {}
    for named in (line[1] for line in words if len(line) > 1 and line[0] == "nameserver"):
        with suppress(ValueError):
            ip_address(named)
            found[named] = None
    return tuple(found)[:MAX_SERVERS]
