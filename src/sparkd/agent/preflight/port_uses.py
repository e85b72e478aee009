"""Finds who listens on a port of this machine."""

from msgspec import Struct
from msgspec.structs import replace

from sparkd.agent.preflight.engine_processes import format_service_stop
from sparkd.base.host import Host
from sparkd.base.host.processes import ProcessTable
from sparkd.base.host.sockets import Holder, Listener

EPHEMERAL = 32768
"""The first port of those that the kernel assigns: an engine has a dozen, and they identify nothing."""
DOCKERD = "dockerd"
PROXIES = ("docker-proxy", DOCKERD)
"""docker's processes that hold a published port of a container: the second where docker's userland-proxy is off, or
with a port of its own. To end one does not end that container alone."""


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
    processes = (process for process in table if process.pid in pids)
    return tuple(_read_port_use(host, table, holder) for holder in host.port_holders(processes, listeners))


def find_port_uses(host: Host, table: ProcessTable, listeners: tuple[Listener, ...]) -> tuple[PortUse, ...]:
    """The use of each listener, in their order: of processes that share one, by the oldest."""
    oldest_first = sorted(table, key=lambda process: (process.start_time, process.pid))
    uses: dict[tuple[str, int], PortUse] = {}
    for holder in host.port_holders(oldest_first, listeners):
        place = holder.listener.address, holder.listener.port
        if place not in uses:
            uses[place] = _read_port_use(host, table, holder)
    return tuple(
        uses.get((listener.address, listener.port), PortUse(listener.port, listener.address, None))
        for listener in listeners
    )


def find_holder(host: Host, ports: tuple[int, ...], rank_pid: int) -> str:
    """Who has one of these ports, and does not descend from this process; empty where nobody has.

    Raises OSError, ValueError.
    """
    table = host.processes()
    own = {rank_pid, *(process.pid for process in table.descendants(rank_pid))}
    uses = find_port_uses(host, table, host.listeners(ports) or host.bound_sockets(ports))
    return next((describe_holder(use) for use in uses if use.pid not in own), "")


def describe_holder(use: PortUse, user: str = "") -> str:
    """Name who holds a port of a rank's instead of it. `user`: as the kernel reports, where the use may lack it."""
    who = f"pid {use.pid or '?'} ({use.comm or '?'}) of {user or use.user or '?'}"
    return f"port {use.port} is held by {who}, not by this rank"


def find_stop_command(use: PortUse) -> str:
    """The command that stops a holder other than by ending its process; empty where there is none."""
    if use.comm in PROXIES:
        own = "; if that shows none, it is docker's own: change the port" if use.comm == DOCKERD else ""
        return f"sudo docker stop NAME, which this shows: sudo docker ps --filter publish={use.port}{own}"
    return "sudo systemctl stop UNIT, which this shows: systemctl list-sockets" if use.pid == 1 else ""


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
