"""Other machines on a network port: those that answer a ping to all IPv6 nodes, with their addresses by the kernel.

A machine in no common subnet answers, too, since each IPv6 interface has a link-local address. Answers are untrusted:
they are limited in time and number, and only their source addresses are used.
"""

import errno
import os
import selectors
import socket
import struct
import time
from collections.abc import Iterable
from contextlib import ExitStack, suppress
from ipaddress import ip_address
from itertools import chain

from msgspec import Struct

from sparkd.base.host import Host
from sparkd.base.host.sock_diag import ATTRIBUTE, NLM_F_DUMP, query_kernel, records

PING_SECONDS, SEND_AT_SECONDS = 1.0, (0.0, 0.3)
"""Time in which answers count, and the times at which the two pings are sent."""
MOST = 64
"""Neighbours of one port that are listed, and addresses in all to which a connection is tried."""
ECHO = struct.Struct(">BBHHH")
ECHO_REQUEST, ECHO_REPLY, ICMPV6_FILTER = 128, 129, 1
ONLY_REPLIES = struct.pack("=8I", *(0xFFFF_FFFD if word == ECHO_REPLY // 32 else 0xFFFF_FFFF for word in range(8)))
"""The filter of linux/icmpv6.h, with a bit for each type that is not received."""
NETLINK_ROUTE, RTM_GETNEIGH, NDA_DST, NDA_LLADDR = 0, 30, 1, 2
NEIGHBOUR = struct.Struct("=BxxxiHBB")
"""ndmsg of linux/neighbour.h."""
UNREACHED = 0x01 | 0x20
"""NUD_INCOMPLETE and NUD_FAILED."""


class Neighbour(Struct, frozen=True):
    """A machine that answered."""

    interface: str
    link_local: str
    """The address from which it answered."""
    addresses: tuple[str, ...] = ()
    """Other addresses with the same hardware address, by the kernel's table."""
    sparkd: bool = False
    """Whether sparkd's report port is open there. A report itself needs the cluster's key."""


def find_neighbours(host: Host, interfaces: Iterable[str], port: int) -> tuple[Neighbour, ...]:
    """Find them in at most 1.5 s; none where this user may not ping. For a tree of files: as recorded in it.

    `port`: sparkd's report port.
    """
    if not host.live:
        return tuple(host.files.recorded("neighbours", list[Neighbour]) or ())
    machines = ping_all(tuple(interfaces))
    table = read_table() if machines else {}
    by_hardware: dict[tuple[str, bytes | None], list[str]] = {}
    for (interface, address), hardware in table.items():
        if not ip_address(address).is_link_local:
            by_hardware.setdefault((interface, hardware), []).append(address)
    others = {machine: tuple(by_hardware.get((machine[0], table.get(machine)), ())) for machine in machines}
    accepting = _find_open(list(chain.from_iterable(others.values())), port)
    return tuple(
        Neighbour(interface, link_local, addresses, sparkd=not accepting.isdisjoint(addresses))
        for (interface, link_local), addresses in others.items()
    )


def ping_all(interfaces: tuple[str, ...]) -> tuple[tuple[str, str], ...]:
    """Interface and link-local address of each other machine that answers, sorted."""
    token, machines = os.urandom(16), set[tuple[str, str]]()
    with ExitStack() as stack, selectors.DefaultSelector() as selector:
        pingers = []
        for name in interfaces:
            with suppress(OSError):  # no rights, no IPv6, or an interface that went away
                pinger = stack.enter_context(_open_pinger(name))
                selector.register(pinger, selectors.EVENT_READ, name)
                pingers.append((pinger, ("ff02::1", 0, 0, socket.if_nametoindex(name))))
        began, send_at = time.monotonic(), list(SEND_AT_SECONDS)
        while pingers and (elapsed_seconds := time.monotonic() - began) < PING_SECONDS:
            if send_at and elapsed_seconds >= send_at[0]:
                for pinger, all_nodes in pingers:
                    with suppress(OSError):  # it went down
                        pinger.sendto(ECHO.pack(ECHO_REQUEST, 0, 0, 0, len(send_at)) + token, all_nodes)
                del send_at[0]
            for key, _ in selector.select((send_at[0] if send_at else PING_SECONDS) - elapsed_seconds):
                source = _read_reply(key.fileobj, token)  # type: ignore[arg-type]  # a socket
                if source and sum(name == key.data for name, _ in machines) < MOST:
                    machines.add((key.data, source))
    return tuple(sorted(machines))


def _read_reply(pinger: socket.socket, token: bytes) -> str:
    """The address from which the next message comes; empty where that is no reply with the token."""
    with suppress(OSError):
        message, source = pinger.recvfrom(256)
        if message[:1] == bytes([ECHO_REPLY]) and message[ECHO.size :] == token:
            return str(ip_address(source[0].partition("%")[0]))
    return ""


def _open_pinger(interface: str) -> socket.socket:
    """A raw socket for root; else the kernel's ping socket, where net.ipv4.ping_group_range allows it."""
    kind = socket.SOCK_DGRAM if os.geteuid() else socket.SOCK_RAW
    pinger = socket.socket(socket.AF_INET6, kind | socket.SOCK_NONBLOCK, socket.IPPROTO_ICMPV6)
    try:
        if kind == socket.SOCK_RAW:
            pinger.setsockopt(socket.IPPROTO_ICMPV6, ICMPV6_FILTER, ONLY_REPLIES)
        pinger.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_MULTICAST_LOOP, 0)
        pinger.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, interface.encode())
    except BaseException:
        pinger.close()
        raise
    return pinger


def read_table() -> dict[tuple[str, str], bytes]:
    """Hardware addresses by interface and IP address; empty where the kernel's table can't be read."""
    table: dict[tuple[str, str], bytes] = {}
    with suppress(OSError):
        request = NEIGHBOUR.pack(socket.AF_UNSPEC, 0, 0, 0, 0)
        for message in query_kernel(request, NLM_F_DUMP, NETLINK_ROUTE, RTM_GETNEIGH):
            _, index, state, _, _ = NEIGHBOUR.unpack_from(message)
            values = dict(records(message[NEIGHBOUR.size :], ATTRIBUTE))
            address, hardware = values.get(NDA_DST, b""), values.get(NDA_LLADDR, b"")
            if len(address) in (4, 16) and any(hardware) and not state & UNREACHED:
                with suppress(OSError):
                    table[socket.if_indextoname(index), str(ip_address(address))] = hardware
    return table


def _find_open(addresses: list[str], port: int) -> set[str]:
    """Those of the first MOST addresses that accept a TCP connection on this port."""
    accepting, selector = set[str](), selectors.DefaultSelector()
    with ExitStack() as stack:
        stack.enter_context(selector)
        for address in addresses[:MOST]:
            family = socket.AF_INET6 if ":" in address else socket.AF_INET
            client = stack.enter_context(socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK))
            if client.connect_ex((address, port)) in (0, errno.EINPROGRESS):  # else there is no way to it
                selector.register(client, selectors.EVENT_WRITE, address)
        deadline = time.monotonic() + 0.5
        while selector.get_map() and (left_seconds := deadline - time.monotonic()) > 0:
            for key, _ in selector.select(left_seconds):
                selector.unregister(key.fileobj)
                if not key.fileobj.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):  # type: ignore[union-attr]  # a socket
                    accepting.add(key.data)
    return accepting
