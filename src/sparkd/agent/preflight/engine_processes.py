"""The process trees of vLLM on this machine; their share of the GPU's memory, and who holds a port."""

from __future__ import annotations

import shlex
from collections.abc import Container, Iterable
from enum import Enum

from msgspec import Struct
from msgspec.structs import replace

from sparkd.base.host import Host
from sparkd.base.host.processes import Details, Process, ProcessTable
from sparkd.base.host.sockets import Holder, Listener

ENGINE_PREFIX = "VLLM::"
WORKER_PREFIXES = (ENGINE_PREFIX, "ray::RayWorker")
"""Names of EngineCore and the workers, the second under Ray; the kernel keeps 15 letters:
VLLM::EngineCor, VLLM::Worker_TP, ray::RayWorkerP."""
API_SERVER = f"{ENGINE_PREFIX}APIServer"
"""One of several that `vllm serve --api-server-count` starts: it listens for requests, as the main process does."""
MAIN_COMMS = ("vllm", "python", "pt_main_thread")
"""Beginnings of the name of a process that may be a `vllm serve`; its arguments decide."""
REAPERS = frozenset(
    ("systemd", "init", "containerd-shim", "conmon", "docker-init", "tini", "dumb-init", "catatonit", "s6-svscan")
)
"""Programs that adopt orphans, beside PID 1 of the machine and of every container. At most 15 letters."""


class Leader(Enum):
    """What became of a process group's leader."""

    ITSELF = "itself"
    GONE = "gone"
    ENGINE = "engine"
    """Another living process of vLLM: the group is whole."""
    OTHER = "other"
    """Another living process, such as a shell: whether the engine's own main process lives is unknown."""


class Member(Struct, frozen=True):
    pid: int
    start_time: int
    comm: str
    state: str
    frees_bytes: int = 0
    """What its end would free: its private memory, and the GPU's once `with_memory` has added that."""


class Engine(Struct, frozen=True):
    """A tree of vLLM's processes, by its topmost one that lives."""

    members: tuple[Member, ...]
    """The topmost first."""
    serves: bool
    """Whether the topmost listens for requests: a `vllm serve`, or one of its API servers."""
    adopted: bool
    leader: Leader
    user: str
    container_id: str
    """Full id of the container that it runs in; empty outside."""
    service_stop: str = ""
    """The command that stops the systemd service that it runs in; empty outside of one."""
    of_init: bool = False
    """Whether its parent is the machine's own PID 1."""
    of_user: bool = False
    """Whether it is neither root's nor in a container: its user chose its names and arguments."""

    @property
    def top(self) -> Member:
        return self.members[0]

    def with_memory(self, extra_bytes: dict[int, int]) -> Engine:
        """`extra_bytes`: the GPU's memory by pid."""
        members = (
            replace(member, frees_bytes=member.frees_bytes + extra_bytes.get(member.pid, 0)) for member in self.members
        )
        return replace(self, members=tuple(members))


def is_worker(process: Process) -> bool:
    return process.comm.startswith(WORKER_PREFIXES)


def is_serve(argv: tuple[str, ...]) -> bool:
    """Whether it is `vllm serve`, `python .../vllm serve`, or `python -m vllm.entrypoints...`."""
    program = argv[0].rpartition("/")[2] if argv else ""
    if program == "vllm":
        return argv[1:2] == ("serve",)
    if not program.startswith("python"):
        return False
    rest = list(argv[1:])
    while rest and rest[0].startswith("-") and rest[0] not in ("-m", "-c", "-"):
        del rest[: 2 if rest[0] in ("-X", "-W") else 1]
    match rest:
        case ["-m", "vllm", "serve", *_]:
            return True
        case ["-m", module, *_]:
            return module.startswith("vllm.entrypoints.")
        case [script, "serve", *_]:
            return script.rpartition("/")[2] == "vllm"
    return False


def find_engines(host: Host, table: ProcessTable) -> tuple[tuple[Engine, ...], dict[int, int]]:
    """Every engine: each topmost process of vLLM with all that descends from it. Second, what only looks like one:
    uid by pid. Names and arguments prove nothing: an engine is root's, in a container, or has the GPU open.
    """
    named = {process.pid: process for process in table if not process.dead and _is_engine(host, process)}
    tops = {pid: details for pid in table.topmost(named) if (details := host.details(named[pid])) is not None}
    unproven = {pid: details.uid for pid, details in tops.items() if details.uid and not details.group.container_id}
    top_of = {pid: top for top in unproven for pid in (top, *(below.pid for below in table.descendants(top)))}
    for pid in {top_of[pid] for pid in _with_gpu(host, table, top_of)}:
        del unproven[pid]
    engines = {pid: process for pid, process in named.items() if top_of.get(pid) not in unproven}
    proven = (_engine(host, table, engines, named[pid], tops[pid]) for pid in tops if pid not in unproven)
    return tuple(proven), unproven


def _with_gpu(host: Host, table: ProcessTable, among: Container[int]) -> set[int]:
    """Pids that have the GPU open; unless root looks, also those whose open files are unreadable: they may have it."""
    if not host.gpu_present():
        return set()
    opened = host.gpu_users(process for process in table if process.pid in among)
    return {*(file.pid for file in opened.found), *(() if host.by_root else opened.unreadable_pids)}


def pids_of(engines: Iterable[Engine]) -> frozenset[int]:
    return frozenset(member.pid for engine in engines for member in engine.members)


def _is_engine(host: Host, process: Process) -> bool:
    if is_worker(process):
        return True
    return process.comm.startswith(MAIN_COMMS) and not process.kernel and is_serve(host.argv(process))


def _engine(host: Host, table: ProcessTable, engines: dict[int, Process], top: Process, details: Details) -> Engine:
    tree = [process for process in (top, *table.descendants(top.pid)) if process.pid > 1 and not process.dead]
    return Engine(
        members=tuple(_member(host, process) for process in tree),
        serves=not is_worker(top) or top.comm.startswith(API_SERVER),
        adopted=_adopted(host, table, top),
        leader=_leader(table, engines, top),
        user=host.user(details.uid),
        container_id=details.group.container_id,
        service_stop=_service_stop(host, details),
        of_init=top.parent <= 1,
        of_user=details.uid != 0 and not details.group.container_id,
    )


def _service_stop(host: Host, details: Details) -> str:
    group = details.group
    if not group.unit.endswith(".service"):
        return ""
    user = ("--user", "-M", f"{host.user(details.uid).removeprefix('uid ')}@") if group.of_user else ()
    return shlex.join(("sudo", "systemctl", *user, "stop", group.unit))


def _member(host: Host, process: Process) -> Member:
    details = host.details(process)
    private_bytes = details.private_bytes if details else 0
    return Member(process.pid, process.start_time, process.comm, process.state, private_bytes)


def _adopted(host: Host, table: ProcessTable, process: Process) -> bool:
    parent = table.get(process.parent)
    if parent is None or parent.pid <= 1 or parent.comm in REAPERS:
        return True
    details = host.details(parent)
    # The first process of a container may be a worker's own parent too: then they share a group.
    return details is None or (details.namespace_pid == 1 and parent.group != process.group)


def _leader(table: ProcessTable, engines: dict[int, Process], process: Process) -> Leader:
    leader = table.group_leader(process)
    if leader is None:
        return Leader.GONE
    if leader.pid == process.pid:
        return Leader.ITSELF
    return Leader.ENGINE if leader.pid in engines else Leader.OTHER


def gpu_memory_by_pid(host: Host, processes: Iterable[Process]) -> dict[int, int]:
    """Bytes by pid of those that use the GPU; empty where the GPU has memory of its own.

    Where the driver does not report the size, all that no counter of the kernel explains is assigned to the first of
    them: an estimate, good enough to decide whether ending strays could make room.
    """
    if not host.gpu_present() or (gpu := host.gpu()).total_bytes is not None:
        return {}
    known = {user.pid: user.used_bytes for user in gpu.processes or ()}
    judged = {process.pid: process for process in processes}
    users = {file.pid for file in host.gpu_users(judged.values()).found} | (known.keys() & judged.keys())
    sizes = {pid: size for pid in users if (size := known.get(pid)) is not None}
    if unreported := sorted(users - sizes.keys()):
        reported_bytes = sum(size for size in known.values() if size is not None)
        sizes[unreported[0]] = max(0, host.meminfo().unaccounted_bytes - reported_bytes)
    return sizes


EPHEMERAL = 32768
"""The kernel assigns ports from here on: an engine has a dozen, and they identify nothing."""


class PortUse(Struct, frozen=True):
    """A listening socket. `pid` is None where no readable process has it open."""

    port: int
    address: str
    pid: int | None
    comm: str = ""
    user: str = ""
    container_id: str = ""
    start_time: int = 0
    service_stop: str = ""
    """The command, as an `Engine` has it."""


def lasting_ports(host: Host, table: ProcessTable, pids: frozenset[int]) -> tuple[PortUse, ...]:
    """Ports below EPHEMERAL that these processes listen on."""
    if not pids:
        return ()
    listeners = tuple(listener for listener in host.listeners() if listener.port < EPHEMERAL)
    among = (process for process in table if process.pid in pids)
    return tuple(_port_use(host, table, holder) for holder in host.port_holders(among, listeners))


def port_holders(host: Host, table: ProcessTable, listeners: tuple[Listener, ...]) -> tuple[PortUse, ...]:
    """The holder of each of these: the oldest process of those that share one."""
    uses = [_port_use(host, table, holder) for holder in host.port_holders(table, listeners)]
    uses.sort(key=lambda use: _start_order(table, use), reverse=True)
    oldest = {(use.address, use.port): use for use in uses}  # the last of each, so the oldest
    return tuple(
        oldest.get((listener.address, listener.port), PortUse(listener.port, listener.address, None))
        for listener in listeners
    )


def _start_order(table: ProcessTable, use: PortUse) -> tuple[int, int]:
    process = table.get(use.pid or 0)
    return (process.start_time if process else 0, use.pid or 0)


def _port_use(host: Host, table: ProcessTable, held: Holder) -> PortUse:
    use = PortUse(held.listener.port, held.listener.address, held.pid)
    process = table.get(held.pid)
    if process is None or (details := host.details(process)) is None:
        return use
    return replace(
        use,
        comm=process.comm,
        user=host.user(details.uid),
        container_id=details.group.container_id,
        start_time=process.start_time,
        service_stop=_service_stop(host, details),
    )
