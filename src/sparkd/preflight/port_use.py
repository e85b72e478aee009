"""Who listens on which port."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from msgspec import Struct

if TYPE_CHECKING:
    from sparkd.host import Host
    from sparkd.host.processes import Process, ProcessTable
    from sparkd.host.sockets import Listener

EPHEMERAL = 32768
"""Ports from here on are given out by the kernel: an engine has a dozen, and they tell nobody anything."""


class PortUse(Struct, frozen=True):
    """A listening socket. `pid` is None where no process that could be looked at has it open."""

    port: int
    address: str
    pid: int | None
    comm: str = ""
    user: str = ""
    container_id: str = ""


def lasting(host: Host, table: ProcessTable, pids: frozenset[int]) -> tuple[PortUse, ...]:
    """Every lasting port of these processes."""
    if not pids:
        return ()
    listeners = tuple(one for one in host.listeners() if one.port < EPHEMERAL)
    return _held(host, table, (process for process in table if process.pid in pids), listeners)


def holders(host: Host, table: ProcessTable, listeners: tuple[Listener, ...]) -> tuple[PortUse, ...]:
    """Who has each of these open: the oldest process of those that share one."""
    first: dict[tuple[str, int], PortUse] = {}
    for use in _held(host, table, table, listeners):
        key = (use.address, use.port)
        known = first.get(key)
        if known is None or _age(table, use) < _age(table, known):
            first[key] = use
    return tuple(first.get((one.address, one.port), PortUse(one.port, one.address, None)) for one in listeners)


def _age(table: ProcessTable, use: PortUse) -> tuple[int, int]:
    process = table.get(use.pid or 0)
    return (process.start_time if process else 0, use.pid or 0)


def _held(
    host: Host, table: ProcessTable, among: Iterable[Process], listeners: tuple[Listener, ...]
) -> tuple[PortUse, ...]:
    return tuple(_use(host, table, one.listener, one.pid) for one in host.port_holders(among, listeners))


def _use(host: Host, table: ProcessTable, listener: Listener, pid: int) -> PortUse:
    process = table.get(pid)
    details = host.details(process) if process else None
    if process is None or details is None:
        return PortUse(listener.port, listener.address, pid)
    return PortUse(listener.port, listener.address, pid, process.comm, host.user(details.uid), details.container_id)
