"""Every change that preflight may propose, as data with the identity that was judged; and its result."""

from shlex import quote
from typing import ClassVar, Literal, assert_never

from msgspec import Struct


class EndProcess(Struct, frozen=True):
    """SIGTERM, then SIGKILL, through a pidfd, if `pid` still has `start_time` (clock ticks since boot)."""

    pid: int
    start_time: int
    comm: str
    frees_bytes: int = 0
    kind: ClassVar[str] = "end-process"

    @property
    def target(self) -> str:
        return f"pid {self.pid} ({self.comm})"


class RemoveContainer(Struct, frozen=True):
    """Stop and remove a container of ours whose agent is gone. `container_id` is the full id."""

    container_id: str
    name: str
    frees_bytes: int = 0
    kind: ClassVar[str] = "remove-container"

    @property
    def target(self) -> str:
        return f"container {self.name} ({self.container_id[:12]})"


class UnlinkSegment(Struct, frozen=True):
    """Unlink a /dev/shm file that no process has open or mapped, if it is still (device, inode)."""

    path: str
    device: int
    inode: int
    frees_bytes: int = 0
    kind: ClassVar[str] = "unlink-segment"

    @property
    def target(self) -> str:
        return self.path


class DropPageCache(Struct, frozen=True):
    """sync, then write 3 to /proc/sys/vm/drop_caches. What it frees was counted in MemAvailable already."""

    frees_bytes: int = 0
    kind: ClassVar[str] = "drop-page-cache"
    target: ClassVar[str] = "page cache"


WORTH_COMPACTING_BYTES = 256 << 20
"""Free memory in smaller blocks, or a gain, of less is not worth a compaction."""


class CompactMemory(Struct, frozen=True):
    """Write 1 to /proc/sys/vm/compact_memory, if less than `wanted_bytes` is still free in large blocks."""

    wanted_bytes: int
    frees_bytes: int = 0
    kind: ClassVar[str] = "compact-memory"
    target: ClassVar[str] = "free memory"


Fix = EndProcess | RemoveContainer | UnlinkSegment | DropPageCache | CompactMemory
ORDER: tuple[type, ...] = (EndProcess, RemoveContainer, UnlinkSegment, DropPageCache, CompactMemory)
"""Strays first (they hold segments), then segments, then the page cache; free memory is compacted last."""

BY_START = "once nothing else blocks, a start "
DROP_BY_HAND = "sync && echo 3 | sudo tee /proc/sys/vm/drop_caches"


def by_start(does: str) -> str:
    """The hint where a fix clears the finding. `does`: the fix in words, such as `ends it`."""
    return f"{BY_START}{does}, as does: sudo sparkd preflight"


def by_hand(fix: Fix) -> str:
    """The command by which a person makes the change."""
    match fix:
        case EndProcess():
            return stop_by_hand(fix.pid, "")
        case RemoveContainer():
            return f"sudo docker rm --force {fix.container_id[:12]}"
        case UnlinkSegment():
            return f"sudo rm {quote(fix.path)}"
        case DropPageCache():
            return DROP_BY_HAND
        case CompactMemory():
            return "echo 1 | sudo tee /proc/sys/vm/compact_memory"
        case _:
            assert_never(fix)


def stop_by_hand(pid: int, service_stop: str, *, beside_agent: bool = False) -> str:
    """The command by which a person ends a process. Some services (cron) leave their processes when they stop.

    `beside_agent`: also while an agent loads or serves, beside which `sparkd preflight --fix` is refused.
    """
    by_pid = f"sudo kill {pid}" if beside_agent else f"sudo sparkd preflight --fix {pid}"
    return f"{service_stop}; if it outlives that: {by_pid}" if service_stop else by_pid


Identity = tuple[object, ...]


def identity(fix: Fix) -> Identity:
    """What a fix changes, without the size that was judged: equal for two fixes of the same thing."""
    match fix:
        case EndProcess():
            return fix.kind, fix.pid, fix.start_time
        case RemoveContainer():
            return fix.kind, fix.container_id
        case UnlinkSegment():
            return fix.kind, fix.path, fix.device, fix.inode
        case DropPageCache() | CompactMemory():
            return (fix.kind,)
        case _:
            assert_never(fix)


class Applied(Struct, frozen=True):
    """The result of a fix. `stale`: its target is gone or has changed, and nothing was done. `failed`: see `note`."""

    state: Literal["applied", "stale", "failed"]
    note: str = ""


class FixState(Struct, frozen=True):
    """What became of a fix, for the report."""

    fix: Fix
    state: str
    """One of: would apply, held back, applied, stale, failed."""
    note: str = ""
