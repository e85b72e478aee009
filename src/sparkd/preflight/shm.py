"""Shared memory: segments that engines left in /dev/shm."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, ClassVar

from msgspec import Struct

from sparkd.preflight.check import About, Check, Level, Verdict
from sparkd.preflight.fixes import UnlinkSegment
from sparkd.preflight.sizes import size

if TYPE_CHECKING:
    from sparkd.host import Host
    from sparkd.host.shm import Segment, Uses

NAMES = re.compile(r"psm_[0-9a-f]{8}|sem\.mp-[\w.-]{1,64}|nccl-[\w.-]{1,64}|vllm_dist_[\w.:,\[\]-]{1,200}", re.ASCII)
"""What vLLM and NCCL were seen to leave. Every Python program may use psm_ and sem.mp-: so never by name alone."""
YOUNGEST_SECONDS = 60.0
"""A program that has just made a segment may not have mapped it yet, or be about to hand it to another."""


class SegmentFacts(Struct, frozen=True):
    path: str
    device: int
    inode: int
    size_bytes: int
    allocated_bytes: int
    uid: int
    links: int
    age_seconds: float
    used_by: tuple[int, ...]


class ShmFacts(Struct, frozen=True):
    own_device: int
    """Of the machine's own /dev/shm."""
    segments: tuple[SegmentFacts, ...]
    """Those whose names an engine may have given."""
    unreadable_pids: tuple[int, ...]


class SharedMemory(Check[ShmFacts], frozen=True):
    """Orphans are a WARN: they take memory, and no launch fails by them alone."""

    owners: tuple[int, ...] = (0,)
    """Users whose segments may be unlinked."""
    id: ClassVar[str] = "shared-memory"
    about: ClassVar[About] = About(
        levels=(Level.WARN,),
        reads="files of /dev/shm; /proc/PID/maps and fd of every process",
        source="measured on vLLM 0.32: what a killed engine leaves",
        fixes=("unlink-segment",),
        page="""\
vLLM's processes talk through segments in /dev/shm, made in the host's own with `ipc: host`. An engine that is killed
leaves them behind, and their memory with them: 160 MiB for each message queue, more with caches.

Orphaned is a segment named psm_ and 8 hex digits, sem.mp-*, nccl-* or vllm_dist_*, older than 60 s, of root, on the
host's own /dev/shm, of one name, that no process has open or mapped, told by device and inode. Just before it is
unlinked all that is looked at again.

  warn  orphans were found (preflight unlinks them if nothing else blocks), or some would be orphans if not for
        processes that can't be looked at: then all are kept.""",
    )

    def probe(self, host: Host) -> ShmFacts:
        named = [segment for segment in host.segments() if NAMES.fullmatch(segment.name)]
        if not named:
            return ShmFacts(0, (), ())
        uses = host.segment_uses(host.processes(), named)
        return ShmFacts(host.shm_device(), tuple(_facts(segment, uses) for segment in named), uses.unreadable_pids)

    def judge(self, facts: ShmFacts) -> Verdict:
        orphans = [segment for segment in facts.segments if self._orphaned(segment, facts.own_device)]
        used = sum(1 for segment in facts.segments if segment.used_by)
        if not orphans:
            return Verdict(Level.OK, f"no orphaned segments, {used} in use" if used else "no orphaned segments")
        names = ", ".join(segment.path.rpartition("/")[2] for segment in orphans[:3])
        more = f" and {len(orphans) - 3} more" if len(orphans) > 3 else ""
        held = size(sum(segment.allocated_bytes for segment in orphans))
        if facts.unreadable_pids:
            pids = ", ".join(str(pid) for pid in facts.unreadable_pids[:3])
            return Verdict(
                Level.WARN,
                f"{names}{more} ({held}) may be orphaned, but what {len(facts.unreadable_pids)} processes use can't "
                f"be read (pid {pids}): kept",
                "run as root, outside a container",
            )
        return Verdict(
            Level.WARN,
            f"{names}{more} hold {held} and belong to no process",
            "unlink them",
            fixes=tuple(
                UnlinkSegment(one.path, one.device, one.inode, frees_bytes=one.allocated_bytes) for one in orphans
            ),
        )

    def _orphaned(self, segment: SegmentFacts, own_device: int) -> bool:
        return (
            not segment.used_by
            and segment.age_seconds > YOUNGEST_SECONDS
            and segment.uid in self.owners
            and segment.device == own_device
            and segment.links == 1
        )


def _facts(segment: Segment, uses: Uses) -> SegmentFacts:
    return SegmentFacts(
        path=segment.path,
        device=segment.device,
        inode=segment.inode,
        size_bytes=segment.size_bytes,
        allocated_bytes=segment.allocated_bytes,
        uid=segment.uid,
        links=segment.links,
        age_seconds=round(segment.age_seconds, 1),
        used_by=uses.pids(segment),
    )
