"""Other machines on a network port: who answers a ping of all IPv6 nodes, and what the kernel knows of them.

A machine without any address in common answers too: each IPv6 interface has a link-local address. What comes back was
sent by strangers: it is bounded in time and number, and only addresses are taken from it.
"""

from __future__ import annotations

import errno
import os
import selectors
import socket
import struct
import time
from collections.abc import Iterable
from contextlib import ExitStack, suppress
from ipaddress import ip_address

from msgspec import Struct
from msgspec.structs import replace

from sparkd.base.host import Host
from sparkd.base.host.sockets import ATTRIBUTE, NLM_F_DUMP, query_kernel, records

PING_SECONDS, SEND_AT_SECONDS = 1.0, (0.0, 0.3)
"""How long answers are awaited, and when each of two pings is sent."""
CONNECT_SECONDS = 0.5
MOST = 64
"""Neighbours of one port, and addresses that are tried."""
ECHO = struct.Struct(">BBHHH")
ECHO_REQUEST, ECHO_REPLY, ICMPV6_FILTER = 128, 129, 1
REPLIES_ALONE = struct.pack("=8I", *(0xFFFF_FFFD if word == ECHO_REPLY // 32 else 0xFFFF_FFFF for word in range(8)))
"""A bit for each type that is not received: linux/icmpv6.h."""
NETLINK_ROUTE, RTM_GETNEIGH, NDA_DST, NDA_LLADDR = 0, 30, 1, 2
NEIGHBOUR = struct.Struct("=BxxxiHBB")
"""ndmsg of linux/neighbour.h."""
UNREACHED = 0x01 | 0x20
"""NUD_INCOMPLETE and NUD_FAILED."""


class Neighbour(Struct, frozen=True):
    interface: str
    link_local: str
    """The address that answered."""
    addresses: tuple[str, ...] = ()
    """Others of the same hardware address, by the kernel's table."""
    sparkd: bool = False
    """Whether sparkd's report port is open there. It says nothing to strangers."""


def find_neighbours(host: Host, interfaces: Iterable[str], port: int) -> tuple[Neighbour, ...]:
    """Find them in 1.5 s at most; none where this user may not ping. `port`: sparkd's. A tree of files records them."""
    if not host.live:
        return tuple(host.files.recorded("neighbours", list[Neighbour]) or ())
    answered = ping_all(tuple(interfaces))
    table = read_table() if answered else {}
    neighbours = []
    for interface, link_local in answered:
        machine = (interface, table.get((interface, link_local)))
        addresses = (address for (port_name, address), hardware in table.items() if (port_name, hardware) == machine)
        others = tuple(address for address in addresses if not ip_address(address).is_link_local)
        neighbours.append(Neighbour(interface, link_local, others))
    opened = _find_open([address for neighbour in neighbours for address in neighbour.addresses], port)
    return tuple(replace(neighbour, sparkd=not opened.isdisjoint(neighbour.addresses)) for neighbour in neighbours)


def ping_all(interfaces: tuple[str, ...]) -> tuple[tuple[str, str], ...]:
    """Interface and link-local address of each machine that answered, in order; never this one."""
    token, machines = os.urandom(16), set[tuple[str, str]]()
    with ExitStack() as stack, selectors.DefaultSelector() as selector:
        pingers = []
        for name in interfaces:
            with suppress(OSError):  # no rights, no IPv6, or an interface that went away
                pinger = stack.enter_context(_pinger(name))
                selector.register(pinger, selectors.EVENT_READ, name)
                pingers.append((pinger, ("ff02::1", 0, 0, socket.if_nametoindex(name))))
        began, send_at = time.monotonic(), list(SEND_AT_SECONDS)
        while pingers and (passed := time.monotonic() - began) < PING_SECONDS:
            if send_at and passed >= send_at[0]:
                for pinger, all_nodes in pingers:
                    with suppress(OSError):  # it went down
                        pinger.sendto(ECHO.pack(ECHO_REQUEST, 0, 0, 0, len(send_at)) + token, all_nodes)
                del send_at[0]
            for key, _ in selector.select((send_at[0] if send_at else PING_SECONDS) - passed):
                with suppress(OSError):
                    answer, source = key.fileobj.recvfrom(256)  # type: ignore[union-attr]  # a socket
                    known = sum(name == key.data for name, _ in machines)
                    if answer[:1] == bytes([ECHO_REPLY]) and answer[ECHO.size :] == token and known < MOST:
                        machines.add((key.data, str(ip_address(source[0].partition("%")[0]))))
    return tuple(sorted(machines))


def _pinger(interface: str) -> socket.socket:
    """A raw socket for root; else the kernel's ping socket, where net.ipv4.ping_group_range allows it."""
    kind = socket.SOCK_DGRAM if os.geteuid() else socket.SOCK_RAW
    pinger = socket.socket(socket.AF_INET6, kind | socket.SOCK_NONBLOCK, socket.IPPROTO_ICMPV6)
    try:
        if kind == socket.SOCK_RAW:
            pinger.setsockopt(socket.IPPROTO_ICMPV6, ICMPV6_FILTER, REPLIES_ALONE)
        pinger.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_MULTICAST_LOOP, 0)
        pinger.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, interface.encode())
    except BaseException:
        pinger.close()
        raise
    return pinger


def read_table() -> dict[tuple[str, str], bytes]:
    """Hardware address by interface and IP address; empty where the kernel's table can't be read."""
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
    """Which of the first MOST accept a TCP connection on this port."""
    accepting, waiting = set[str](), selectors.DefaultSelector()
    with ExitStack() as stack:
        stack.enter_context(waiting)
        for address in addresses[:MOST]:
            family = socket.AF_INET6 if ":" in address else socket.AF_INET
            client = stack.enter_context(socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK))
            if client.connect_ex((address, port)) in (0, errno.EINPROGRESS):  # else there is no way to it
                waiting.register(client, selectors.EVENT_WRITE, address)
        deadline = time.monotonic() + CONNECT_SECONDS
        while waiting.get_map() and (left := deadline - time.monotonic()) > 0:
            for key, _ in waiting.select(left):
                waiting.unregister(key.fileobj)
                if not key.fileobj.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):  # type: ignore[union-attr]  # a socket
                    accepting.add(key.data)
    return accepting
