"""Finds the process trees of vLLM on this machine, and their share of the GPU's memory."""

import shlex
from collections.abc import Container, Iterable
from contextlib import suppress
from enum import Enum
from stat import S_ISUID

from msgspec import Struct
from msgspec.structs import replace

from sparkd.base.host import Host
from sparkd.base.host.meminfo import read_unexplained_bytes
from sparkd.base.host.processes import GONE, Details, Process, ProcessTable, is_alive

ENGINE_PREFIX = "VLLM::"
WORKER_PREFIXES = (ENGINE_PREFIX, "ray::RayWorker")
"""Beginnings of the names of EngineCore and the workers; the second is that of workers under Ray. The kernel keeps 15
letters: VLLM::EngineCor, VLLM::Worker_TP, ray::RayWorkerP."""
API_SERVER = f"{ENGINE_PREFIX}APIServer"
"""One of several that `vllm serve --api-server-count` starts: it listens for requests, as the main process does."""
MAIN_COMMS = ("vllm", "python", "pt_main_thread")
"""Beginnings of the name of a process that may be a `vllm serve`; its arguments decide."""
REAPERS = frozenset(
    ("systemd", "init", "containerd-shim", "conmon", "docker-init", "tini", "dumb-init", "catatonit", "s6-svscan")
)
"""Programs that adopt orphans, besides PID 1 of the machine and of every container. At most 15 letters."""


class Leader(Enum):
    """The leader of the process group of an engine's topmost process."""

    ITSELF = "itself"
    GONE = "gone"
    ENGINE = "engine"
    """Another living process of vLLM: the group is complete."""
    OTHER = "other"
    """Another living process, such as a shell: whether the engine's own main process lives is unknown."""


class Member(Struct, frozen=True):
    """A process of an engine."""

    pid: int
    start_time: int
    comm: str
    state: str
    frees_bytes: int = 0
    """Memory that its end would free: its own, and with `with_memory` the GPU's, too."""


class Engine(Struct, frozen=True):
    """A living process of vLLM that has no other above it, with all its descendants."""

    members: tuple[Member, ...]
    """Its processes, the topmost first."""
    serves: bool
    """Whether the topmost listens for requests: a `vllm serve`, or one of its API servers."""
    adopted: bool
    """Whether the topmost has lost its parent."""
    leader: Leader
    user: str
    container_id: str
    """Full id of the container that it runs in; empty outside."""
    service_stop: str = ""
    """The command that stops the systemd service that it runs in; empty outside a service."""
    of_init: bool = False
    """Whether its parent is the machine's own PID 1."""
    of_user: bool = False
    """Whether it is not in a container, and not root's or a setuid program: its user chose its names and arguments."""

    @property
    def top(self) -> Member:
        return self.members[0]

    def with_memory(self, extra_bytes: dict[int, int]) -> "Engine":
        """The engine with the GPU's memory, by pid, added to what its members free."""
        sizes = ((member, member.frees_bytes + extra_bytes.get(member.pid, 0)) for member in self.members)
        return replace(self, members=tuple(replace(member, frees_bytes=size) for member, size in sizes))


def is_worker(process: Process) -> bool:
    return process.comm.startswith(WORKER_PREFIXES)


def is_serve(argv: tuple[str, ...]) -> bool:
    """Whether these arguments are `vllm serve`, `python .../vllm serve`, or `python -m vllm.entrypoints...`."""
    program = argv[0].rpartition("/")[2] if argv else ""
    if program == "vllm":
        return argv[1:2] == ("serve",)
    if not program.startswith("python"):
        return False
    arguments = list(argv[1:])
    while arguments and arguments[0].startswith("-") and arguments[0] not in ("-m", "-c", "-"):
        del arguments[: 2 if arguments[0] in ("-X", "-W") else 1]
    match arguments:
        case ["-m", "vllm", "serve", *_]:
            return True
        case ["-m", module, *_]:
            return module.startswith("vllm.entrypoints.")
        case [script, "serve", *_]:
            return script.rpartition("/")[2] == "vllm"
    return False


def find_engines(host: Host, table: ProcessTable) -> tuple[tuple[Engine, ...], dict[int, int]]:
    """Every engine; and the topmost processes of those that only look like one, as uids by pid.

    Any user may choose names and arguments of processes: a real engine is root's and no setuid program, in a container,
    or has the GPU open.
    """
    candidates = {process.pid: process for process in table if not process.dead and _looks_like_engine(host, process)}
    tops = {pid: details for pid in table.topmost(candidates) if (details := host.details(candidates[pid])) is not None}
    of_users = {
        pid: details.uid
        for pid, details in tops.items()
        if not details.group.container_id and (details.uid or _is_setuid(host, candidates[pid]))
    }
    trees = {pid: {pid, *(process.pid for process in table.descendants(pid))} for pid in of_users}
    gpu_pids = _find_gpu_pids(host, table, set[int]().union(*trees.values()))
    unproven = {pid: uid for pid, uid in of_users.items() if trees[pid].isdisjoint(gpu_pids)}
    engine_pids = candidates.keys() - set[int]().union(*(trees[pid] for pid in unproven))
    engines = (
        _read_engine(host, table, engine_pids, candidates[pid], details, of_user=pid in of_users)
        for pid, details in tops.items()
        if pid not in unproven
    )
    return tuple(engines), unproven


def _is_setuid(host: Host, process: Process) -> bool:
    """Whether root's program is one that a user may start under any name, such as chfn, or may have been.

    It shows nothing once the process ends, which a user's own file system (FUSE) keeps from it, in state D.
    """
    with suppress(OSError):
        folder = f"/proc/{process.pid}"
        try:
            return bool(host.files.stat(f"{folder}/exe").permissions & S_ISUID)
        except GONE:
            is_over = not is_alive(host.files, process.pid, process.start_time)
            return is_over or b"fuse_" in host.files.bytes(f"{folder}/stack")
    return False


def _find_gpu_pids(host: Host, table: ProcessTable, pids: Container[int]) -> set[int]:
    """Those of the pids that have the GPU open, and without root those that may have it: their files are unreadable."""
    if not host.gpu_present():
        return set()
    device_files = host.gpu_users(process for process in table if process.pid in pids)
    return {*(file.pid for file in device_files.found), *(() if host.runs_as_root else device_files.unreadable_pids)}


def pids_of(engines: Iterable[Engine]) -> frozenset[int]:
    return frozenset(member.pid for engine in engines for member in engine.members)


def _looks_like_engine(host: Host, process: Process) -> bool:
    if is_worker(process):
        return True
    return process.comm.startswith(MAIN_COMMS) and not process.kernel and is_serve(host.argv(process))


def _read_engine(
    host: Host, table: ProcessTable, engine_pids: Container[int], top: Process, details: Details, *, of_user: bool
) -> Engine:
    tree = (process for process in (top, *table.descendants(top.pid)) if process.pid > 1 and not process.dead)
    return Engine(
        members=tuple(_read_member(host, process) for process in tree),
        serves=not is_worker(top) or top.comm.startswith(API_SERVER),
        adopted=_is_adopted(host, table, top),
        leader=_find_leader(table, engine_pids, top),
        user=host.user(details.uid),
        container_id=details.group.container_id,
        service_stop=format_service_stop(host, details),
        of_init=top.parent <= 1,
        of_user=of_user,
    )


def _read_member(host: Host, process: Process) -> Member:
    details = host.details(process)
    frees_bytes = details.frees_bytes if details is not None else 0
    return Member(process.pid, process.start_time, process.comm, process.state, frees_bytes)


def format_service_stop(host: Host, details: Details) -> str:
    """The command that stops the systemd service of a process; empty outside a service."""
    group = details.group
    if not group.unit.endswith(".service"):
        return ""
    user = ("--user", "-M", f"{host.user(int(group.manager_uid)).removeprefix('uid ')}@") if group.manager_uid else ()
    return shlex.join(("sudo", "systemctl", *user, "stop", group.unit))


def _is_adopted(host: Host, table: ProcessTable, process: Process) -> bool:
    parent = table.get(process.parent)
    if parent is None or parent.pid <= 1 or parent.comm in REAPERS:
        return True
    details = host.details(parent)
    # The first process of a container adopts orphans, but is a worker's own parent where both share a group.
    return details is None or (details.namespace_pid == 1 and parent.group != process.group)


def _find_leader(table: ProcessTable, engine_pids: Container[int], process: Process) -> Leader:
    leader = table.group_leader(process)
    if leader is None:
        return Leader.GONE
    if leader.pid == process.pid:
        return Leader.ITSELF
    return Leader.ENGINE if leader.pid in engine_pids else Leader.OTHER


def gpu_memory_by_pid(host: Host, processes: Iterable[Process]) -> dict[int, int]:
    """GPU memory in bytes, by pid, of the processes that use the GPU; empty where the GPU has memory of its own.

    Where the driver lists one without its size, or nobody at all, all memory that nothing explains is assigned to the
    first of them: an estimate, good enough to decide whether ending strays could make room. One that only has the
    devices open beside those that are listed gets none, for that memory may be a dead process's.
    """
    if not host.gpu_present() or (gpu := host.gpu()).total_bytes is not None:
        return {}
    among = tuple(processes)
    listed = {user.pid: user.used_bytes for user in gpu.processes or ()}
    own = {process.pid: listed[process.pid] for process in among if process.pid in listed}
    if not listed:
        own = {file.pid: None for file in host.gpu_users(among).found}
    sizes = {pid: size for pid, size in own.items() if size is not None}
    if unreported := own.keys() - sizes.keys():
        reported_bytes = sum(size for size in listed.values() if size is not None)
        sizes[min(unreported)] = max(0, read_unexplained_bytes(host.files, host.meminfo()) - reported_bytes)
    return sizes
