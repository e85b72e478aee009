"""Listening TCP ports, and which process holds each."""

from __future__ import annotations

import re
from collections.abc import Iterable
from ipaddress import IPv4Address, IPv6Address

from msgspec import Struct

from sparkd.host import open_files
from sparkd.host.files import Files
from sparkd.host.processes import Process

_LISTEN = "0A"
_SOCKET = re.compile(r"socket:\[(\d+)\]\Z")


class Listener(Struct, frozen=True):
    address: str
    port: int
    inode: int


class Holder(Struct, frozen=True):
    """A process with a listening socket open. Several may share one."""

    listener: Listener
    pid: int


def listeners(files: Files) -> tuple[Listener, ...]:
    """Sockets in state LISTEN. A port that is bound but not yet listened on shows nowhere in /proc."""
    found = []
    for path in ("/proc/net/tcp", "/proc/net/tcp6"):
        try:
            lines = files.text(path, limit=64 << 20).splitlines()[1:]
        except FileNotFoundError:
            if path.endswith("6"):  # a kernel without IPv6
                continue
            raise
        found += [listener for line in lines if (listener := _listener(line.split())) is not None]
    return tuple(found)


def _listener(fields: list[str]) -> Listener | None:
    try:
        address, _, port = fields[1].partition(":")
        if fields[3] != _LISTEN:
            return None
        return Listener(_address(address), int(port, 16), int(fields[9]))
    except (IndexError, ValueError):
        return None


def _address(text: str) -> str:
    """The kernel prints each 32-bit word in the machine's byte order: little-endian on every machine sparkd runs on."""
    raw = bytes.fromhex(text)
    swapped = b"".join(raw[at : at + 4][::-1] for at in range(0, len(raw), 4))
    return str(IPv4Address(swapped) if len(raw) == 4 else IPv6Address(swapped))


def holders(files: Files, processes: Iterable[Process], wanted: tuple[Listener, ...]) -> tuple[Holder, ...]:
    """Who has these sockets open, among the processes that could be looked at."""
    by_inode = {listener.inode: listener for listener in wanted}
    found: dict[tuple[int, int], Holder] = {}
    for file in open_files.of(files, processes).found:
        inode = _SOCKET.match(file.target)
        listener = by_inode.get(int(inode[1])) if inode else None
        if listener is not None:
            found[listener.inode, file.pid] = Holder(listener, file.pid)
    return tuple(found.values())
