"""Network interfaces as /sys/class/net shows them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from msgspec import Struct

from sparkd.host.files import Files
from sparkd.lib.text import sanitize

FOLDER = "/sys/class/net"
LIMIT_BYTES = 4096
IFF_UP, IFF_LOOPBACK = 0x1, 0x8
"""linux/if.h."""
BONDS = "bonding_masters"
"""A file among the interfaces, once bonding is loaded."""
MAX_LOWER = 16
"""A bond of a DGX Spark has four members at most; what is wider is no fabric of ours."""

T = TypeVar("T")


class Link(Struct, frozen=True):
    """One interface. None where the kernel does not say: of an interface that is down, and of one made in software."""

    name: str
    up: bool
    """Whether it was set up; whether anything is at its other end is `carrier`."""
    operstate: str
    carrier: bool | None
    speed_mbps: int | None
    mtu: int
    physical: bool
    """Whether a device stands behind it. One made in software (veth, tun) has whatever speed it was given."""
    loopback: bool
    wireless: bool
    lower: tuple[str, ...] = ()
    """Interfaces that a bond or a VLAN is made of."""


def read(files: Files, name: str) -> Link | None:
    """None where there is no such interface. Raises ValueError where what it says is no interface of Linux."""
    folder = f"{FOLDER}/{name}"
    try:
        inside = files.names(folder)
    except (FileNotFoundError, NotADirectoryError):
        return None
    flags = _said(files, f"{folder}/flags", lambda text: int(text, 16)) or 0
    speed = _said(files, f"{folder}/speed", int)
    return Link(
        name=name,
        up=bool(flags & IFF_UP),
        operstate=sanitize(_said(files, f"{folder}/operstate", str) or "unknown", 32),
        carrier=_said(files, f"{folder}/carrier", lambda text: text == "1"),
        speed_mbps=speed if speed is not None and 0 < speed < 1 << 31 else None,
        mtu=_said(files, f"{folder}/mtu", int) or 0,
        physical="device" in inside,
        loopback=bool(flags & IFF_LOOPBACK),
        wireless="wireless" in inside or "phy80211" in inside,
        lower=tuple(one.removeprefix("lower_") for one in inside if one.startswith("lower_"))[:MAX_LOWER],
    )


def with_lower(files: Files, name: str) -> tuple[Link, ...]:
    """The interface and all that it is made of: a VLAN may lie on a bond. Empty where there is no such interface."""
    found: dict[str, Link] = {}
    todo = [name]
    while todo and len(found) < MAX_LOWER:
        one = todo.pop(0)
        link = read(files, one) if one not in found else None
        if link is not None:
            found[one] = link
            todo += link.lower
    return tuple(found.values())


def names(files: Files) -> tuple[str, ...]:
    try:
        return tuple(name for name in files.names(FOLDER) if name != BONDS)
    except FileNotFoundError:
        return ()


def _said(files: Files, path: str, parse: Callable[[str], T]) -> T | None:
    """None where the kernel has no answer: no such file, or EINVAL for an interface that is down."""
    try:
        text = files.text(path, limit=LIMIT_BYTES).strip()
    except OSError:
        return None
    return parse(text) if text else None
