"""rank.json: this node's rank and the process that has it, as long as its container exists."""

from collections.abc import Mapping
from contextlib import suppress
from enum import Enum

from msgspec import Struct, field

from sparkd.base.host import Host
from sparkd.base.host.docker import ContainerFacts
from sparkd.base.host.files import Files
from sparkd.base.host.owner import NodeOwner
from sparkd.base.host.processes import is_alive, read_process
from sparkd.base.host.shm import Identity, read_segment
from sparkd.base.state.file import StateFile


class RankStage(Enum):
    STARTING = "starting"
    READY = "ready"
    """The rank serves, and what the next agent needs to take it over is written."""
    ENDING = "ending"
    """The process that has the rank is ending it. Written before the first signal."""


class RankRecord(Struct, frozen=True):
    """Written before the container is created. What only a started container has is empty until it has started."""

    rank_id: str
    invocation: str
    """Invocation id of the process that has the rank."""
    boot_id: str
    plan: str
    """Digest of the launch plan."""
    epoch: str
    transport: str
    """The transport as in the report."""
    stage: RankStage = RankStage.STARTING
    container_id: str = ""
    started_at: str = ""
    """Docker's stamp of the container's start."""
    pid: int = 0
    """The container's first process, in the host's namespace."""
    start_time: int = 0
    """Start of that process, in clock ticks since boot."""
    oom_kills: int | None = None
    """The kernel's count of OOM kills at the start; None where it has none."""
    dockerd_pid: str = ""
    """pid of dockerd at the start; empty where containers outlive their dockerd."""
    segments: Mapping[str, Identity] = field(default_factory=dict)
    """Shared memory by path: the rank's own, and segments that earlier ranks of this boot have left."""
    role: str = ""
    taken_over: tuple[float, ...] = ()
    """Times when an agent took the rank over from a crashed one, in seconds since boot."""


RANK_FILE = StateFile(RankRecord, "rank.json", folder="/run/sparkd/private")
LOG_POSITION = f"{RANK_FILE.folder}/log-position"
"""File that says how far its log is in the journal, in docker's notation."""

GUARD = "/run/sparkd-guard/rank"
"""File of the guard outside of the agent, by which the next guard finds the rank: the floor of memory in bytes; pid and
start time each of the rank, the agent and the guard."""
GUARD_COMM = "sparkd-guard"
RECORD_HINT = "the next start of the agent sets that file aside"


class KnownRank(Struct, frozen=True):
    """The record as it was read. A record of another boot counts as none."""

    record: RankRecord | None = None
    alive: bool = False
    """Whether the rank's process lives."""
    error: str = ""
    """Why the record can't be read."""
    guarded: bool = False
    """Whether a guard outside of the agent ends the rank where no agent comes back."""

    @property
    def stays(self) -> bool:
        """Whether the rank may outlive its agent: it serves, and ends by itself where no other agent takes it over."""
        return self.record is not None and self.record.stage is RankStage.READY and self.alive and self.guarded

    def find_record(self, container: ContainerFacts) -> RankRecord | None:
        """The record, where the container's label names its rank; else None."""
        named = self.record is not None and container.rank_id and container.rank_id == self.record.rank_id
        return self.record if named else None

    def proves(self, container: ContainerFacts) -> bool:
        """Whether it is the recorded container, with the recorded process: a label may have been copied."""
        record = self.find_record(container)
        if record is None or record.container_id not in ("", container.id):
            return False
        return not container.running or not record.pid or (container.pid == record.pid and self.alive)

    def contradicts(self, container: ContainerFacts) -> bool:
        """Whether the container says that it is a rank's, and the record is of another one."""
        return bool(container.rank_id) and self.record is not None and not self.proves(container)

    def holder(self, container: ContainerFacts) -> str:
        """The invocation of the process that has the container."""
        record = self.find_record(container)
        return container.invocation if record is None else record.invocation

    def left_by(self, owner: NodeOwner | None) -> str:
        """The container's id, where the process that has it is gone; empty where that process may own the node."""
        if self.record is None or (owner is not None and owner.invocation in ("", self.record.invocation)):
            return ""
        return self.record.container_id


def read_rank(host: Host) -> KnownRank:
    """The record. It must be read after the containers and the owner with which it is compared."""
    try:
        return load_rank(host)
    except OSError as error:
        return KnownRank(error=str(error))


def load_rank(host: Host) -> KnownRank:
    """The record, as by `read_rank`. Raises OSError where it can't be read now."""
    errors: list[str] = []
    record = RANK_FILE.load(host.files, errors.append)
    if record is None or record.boot_id != read_boot_id(host.files):
        return KnownRank(error="".join(errors))
    alive = is_alive(host.files, record.pid, record.start_time)
    return KnownRank(record, alive, guarded=alive and _is_guarded(host.files, record))


def _is_guarded(files: Files, record: RankRecord) -> bool:
    with suppress(OSError, ValueError):
        _, rank, rank_start, _, _, killer_pid, *killer_start = map(int, files.text(GUARD, limit=256).split())
        killer = read_process(files, killer_pid)
        if killer is None or killer.dead or killer.comm != GUARD_COMM or killer_start not in ([], [killer.start_time]):
            return False  # the guard of an earlier build writes no start time, and an upgrade leaves it alone
        return (rank, rank_start) == (record.pid, record.start_time)
    return False


def left_segments(host: Host) -> dict[str, Identity]:
    """Recorded segments that are still there."""
    record = read_rank(host).record
    recorded = {} if record is None else record.segments
    return {path: identity for path, identity in recorded.items() if is_left(host.files, path, identity)}


def is_left(files: Files, path: str, identity: Identity) -> bool:
    """Whether there is this very file in /dev/shm."""
    with suppress(OSError, ValueError):
        segment = read_segment(files, path.rpartition("/")[2], 0)
        return segment is not None and (segment.path, segment.identity) == (path, identity)
    return False


def read_boot_id(files: Files) -> str:
    return files.text("/proc/sys/kernel/random/boot_id").strip()
