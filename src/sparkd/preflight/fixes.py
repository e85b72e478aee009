"""Every change that preflight may ask for, as data with the identity it was judged on."""

from __future__ import annotations

from typing import ClassVar

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

    would_free_bytes: int
    frees_bytes: int = 0
    kind: ClassVar[str] = "drop-page-cache"

    @property
    def target(self) -> str:
        return "page cache"


Fix = EndProcess | RemoveContainer | UnlinkSegment | DropPageCache

ORDER: tuple[type, ...] = (EndProcess, RemoveContainer, UnlinkSegment, DropPageCache)
"""Strays first (they hold segments), then segments, then the page cache."""
