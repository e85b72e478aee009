"""vLLM's processes among all others, and the trees that they form."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING

from msgspec import Struct

if TYPE_CHECKING:
    from sparkd.host import Host
    from sparkd.host.processes import Details, Process, ProcessTable

WORKER_PREFIXES = ("VLLM::", "ray::RayWorker")
"""EngineCore and the workers name themselves so, under Ray the workers by the second; the kernel keeps 15 letters:
VLLM::EngineCor, VLLM::Worker_TP, ray::RayWorkerP."""
MAIN_COMMS = ("vllm", "python", "pt_main_thread")
"""How the name of a process that may be a `vllm serve` begins; its arguments decide."""
REAPERS = frozenset(
    ("systemd", "init", "containerd-shim", "conmon", "docker-init", "tini", "dumb-init", "catatonit", "s6-svscan")
)
"""Who adopts orphans, beside PID 1 of the machine and of every container. At most 15 letters."""


class Leader(Enum):
    """What became of a process group's leader."""

    ITSELF = "itself"
    GONE = "gone"
    ENGINE = "engine"
    """Another living process of vLLM: the group is whole."""
    OTHER = "other"
    """Something else that lives, such as a shell: whether the engine's own main process lives can't be told."""


class Member(Struct, frozen=True):
    """One process of an engine's tree."""

    pid: int
    start_time: int
    comm: str
    state: str
    frees_bytes: int = 0


class Engine(Struct, frozen=True):
    """A tree of vLLM's processes, by its topmost one that lives."""

    members: tuple[Member, ...]
    """The topmost first."""
    serves: bool
    """Whether the topmost is a `vllm serve` rather than one of its children."""
    adopted: bool
    """Whether its parent is init or another reaper."""
    leader: Leader
    user: str
    container_id: str
    """Full id of the container that it runs in; empty outside."""

    @property
    def top(self) -> Member:
        return self.members[0]


def is_worker(process: Process) -> bool:
    return process.comm.startswith(WORKER_PREFIXES)


def is_serve(argv: tuple[str, ...]) -> bool:
    """`vllm serve`, `python .../vllm serve`, `python -m vllm.entrypoints...`."""
    if not argv:
        return False
    program = argv[0].rpartition("/")[2]
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
        case _:
            return False


def find(host: Host, table: ProcessTable) -> tuple[Engine, ...]:
    """Every engine on the machine: each topmost process of vLLM with all that descends from it."""
    engines = {process.pid: process for process in table if not process.dead and _is_engine(host, process)}
    found = []
    for process in engines.values():
        if not any(ancestor.pid in engines for ancestor in _ancestors(table, process)):
            details = host.details(process)
            if details is not None:
                found.append(_engine(host, table, engines, process, details))
    return tuple(found)


def _is_engine(host: Host, process: Process) -> bool:
    if is_worker(process):
        return True
    return process.comm.startswith(MAIN_COMMS) and not process.kernel and is_serve(host.argv(process))


def _ancestors(table: ProcessTable, process: Process) -> tuple[Process, ...]:
    found: dict[int, Process] = {}
    parent = table.get(process.parent)
    while parent is not None and parent.pid not in found:
        found[parent.pid] = parent
        parent = table.get(parent.parent)
    return tuple(found.values())


def _engine(host: Host, table: ProcessTable, engines: dict[int, Process], top: Process, details: Details) -> Engine:
    tree = [one for one in (top, *table.descendants(top.pid)) if one.pid > 1 and not one.dead]
    return Engine(
        members=tuple(_member(host, one) for one in tree),
        serves=not is_worker(top),
        adopted=_adopted(host, table, top),
        leader=_leader(table, engines, top),
        user=host.user(details.uid),
        container_id=details.container_id,
    )


def _member(host: Host, process: Process) -> Member:
    details = host.details(process)
    private = details.private_bytes if details else 0
    return Member(process.pid, process.start_time, process.comm, process.state, private)


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
