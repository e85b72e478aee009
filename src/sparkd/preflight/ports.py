"""Who listens on which port."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sparkd.host import Host
    from sparkd.host.processes import ProcessTable
    from sparkd.host.sockets import Listener

EPHEMERAL = 32768
"""Ports from here on are given out by the kernel: an engine has a dozen, and they tell nobody anything."""


@dataclass(frozen=True)
class PortUse:
    """A listening socket. `pid` is None where no process that could be looked at has it open."""

    port: int
    address: str
    pid: int | None
    comm: str = ""
    user: str = ""
    container_id: str = ""


def find(host: Host, table: ProcessTable, wanted: tuple[int, ...], engine_pids: frozenset[int]) -> tuple[PortUse, ...]:
    """Every use of the wanted ports, and every lasting port of the engines."""
    listeners = host.listeners()
    lasting = tuple(one for one in listeners if one.port in wanted or one.port < EPHEMERAL)
    engines = [process for process in table if process.pid in engine_pids]
    holders = [(one.listener, one.pid) for one in host.port_holders(engines, lasting)] if engines else []
    explained = {listener.inode for listener, _ in holders}
    rest = tuple(one for one in listeners if one.port in wanted and one.inode not in explained)
    if rest:
        others = [process for process in table if process.pid not in engine_pids]
        holders += [(one.listener, one.pid) for one in host.port_holders(others, rest)]
    explained = {listener.inode for listener, _ in holders}
    unknown = [PortUse(one.port, one.address, None) for one in rest if one.inode not in explained]
    return (*(_use(host, table, listener, pid) for listener, pid in holders), *unknown)


def _use(host: Host, table: ProcessTable, listener: Listener, pid: int) -> PortUse:
    process = table.get(pid)
    details = host.details(process) if process else None
    if process is None or details is None:
        return PortUse(listener.port, listener.address, pid)
    return PortUse(listener.port, listener.address, pid, process.comm, host.user(details.uid), details.container_id)
