"""Finds who listens on a port of this machine."""

from msgspec import Struct
from msgspec.structs import replace

from sparkd.agent.preflight.engine_processes import format_service_stop
from sparkd.base.host import Host
from sparkd.base.host.processes import ProcessTable
from sparkd.base.host.sockets import Holder, Listener

EPHEMERAL = 32768
"""The first port of those that the kernel assigns: an engine has a dozen, and they identify nothing."""


class PortUse(Struct, frozen=True):
    """A listening socket and its holder. `pid` is None where no readable process has it open."""

    port: int
    address: str
    pid: int | None
    comm: str = ""
    user: str = ""
    container_id: str = ""
    start_time: int = 0
    service_stop: str = ""
    """The command that stops the holder's service, as in `Engine`."""


def lasting_ports(host: Host, table: ProcessTable, pids: frozenset[int]) -> tuple[PortUse, ...]:
    """Ports below EPHEMERAL that these processes listen on."""
    if not pids:
        return ()
    listeners = tuple(listener for listener in host.listeners() if listener.port < EPHEMERAL)
    engine_processes = (process for process in table if process.pid in pids)
    return tuple(_read_port_use(host, table, holder) for holder in host.port_holders(engine_processes, listeners))


def port_holders(host: Host, table: ProcessTable, listeners: tuple[Listener, ...]) -> tuple[PortUse, ...]:
    """The holder of each listener, in their order: of processes that share one, the oldest."""
    uses = [_read_port_use(host, table, holder) for holder in host.port_holders(table, listeners)]
    uses.sort(key=lambda use: _start_order_key(table, use), reverse=True)
    oldest = {(use.address, use.port): use for use in uses}  # the last of each, so the oldest
    return tuple(
        oldest.get((listener.address, listener.port), PortUse(listener.port, listener.address, None))
        for listener in listeners
    )


def _start_order_key(table: ProcessTable, use: PortUse) -> tuple[int, int]:
    process = table.get(use.pid or 0)
    return (process.start_time if process else 0, use.pid or 0)


def _read_port_use(host: Host, table: ProcessTable, holder: Holder) -> PortUse:
    use = PortUse(holder.listener.port, holder.listener.address, holder.pid)
    process = table.get(holder.pid)
    if process is None or (details := host.details(process)) is None:
        return use
    return replace(
        use,
        comm=process.comm,
        user=host.user(details.uid),
        container_id=details.group.container_id,
        start_time=process.start_time,
        service_stop=format_service_stop(host, details),
    )
