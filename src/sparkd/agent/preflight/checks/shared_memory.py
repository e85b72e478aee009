"""Segments that engines have left in /dev/shm, and that no process uses."""

from __future__ import annotations

import re

from msgspec import Struct
from msgspec.structs import asdict

from sparkd.agent.preflight.check import Check, Level, Verdict, ok, warn
from sparkd.agent.preflight.fixes import UnlinkSegment, by_start
from sparkd.base.host import Host
from sparkd.base.host.shm import FOLDER, Segment
from sparkd.base.lib.text import size
from sparkd.base.plan.inputs import CheckInputs
from sparkd.base.state.rank_record import read_rank

NAMES = re.compile(r"psm_[0-9a-f]{8}|sem\.mp-[\w.-]{1,64}|nccl-[\w.-]{1,64}|vllm_dist_[\w.:,\[\]-]{1,200}", re.ASCII)
"""Names that vLLM and NCCL leave. Every Python program may use psm_ and sem.mp-: so never by name alone."""
YOUNGEST_SECONDS = 60.0
"""A program that has just made a segment may not have mapped it yet, or be about to hand it to another."""


class SegmentFacts(Segment, frozen=True):
    """A segment, with the pids of those processes that have it open or mapped."""

    used_by: tuple[int, ...]
    of_rank: bool = False
    """Whether sparkd has recorded it as that of a rank that has ended."""


class ShmFacts(Struct, frozen=True):
    own_device: int
    segments: tuple[SegmentFacts, ...]
    """Those with an engine's names."""
    unreadable_pids: tuple[int, ...]
    uptime_seconds: float
    """None is older: where one seems to be, the clock was set since, as at a boot with a bad RTC."""


class SharedMemory(Check[ShmFacts], frozen=True):
    """Orphans are a WARN: they take memory, and no launch fails by them alone.

    Root's orphans are known by name, age and use. Another user may keep such a segment on purpose, without a process
    that uses it: it counts as a rank's only where sparkd has recorded it.
    """

    owners: tuple[int, ...] = (0,)
    id = "shared-memory"
    levels = (Level.WARN,)
    fixes = ("unlink-segment",)

    @classmethod
    def from_inputs(cls, inputs: CheckInputs) -> SharedMemory:  # noqa: ARG003  # an engine's user may be a person's too
        return cls()

    def probe(self, host: Host) -> ShmFacts:
        named = host.segments(NAMES)
        if not named:
            return ShmFacts(0, (), (), 0.0)
        uses = host.segment_uses(host.processes(), named)
        rank = read_rank(host)
        recorded = rank.record.segments if rank.record is not None and not rank.alive else {}
        of_rank = {segment for segment in named if recorded.get(segment.path) == segment.identity}
        segments = (
            SegmentFacts(**asdict(segment), used_by=uses.pids(segment), of_rank=segment in of_rank) for segment in named
        )
        return ShmFacts(host.files.stat(FOLDER).device, tuple(segments), uses.unreadable_pids, host.uptime_seconds())

    def judge(self, facts: ShmFacts) -> Verdict:
        orphans = [segment for segment in facts.segments if self._orphaned(segment, facts)]
        used = sum(bool(segment.used_by) for segment in facts.segments)
        if not orphans:
            return ok(f"no orphaned segments, {used} in use" if used else "no orphaned segments")
        names = ", ".join(segment.name for segment in orphans[:3])
        more = f" and {len(orphans) - 3} more" if len(orphans) > 3 else ""
        total = size(sum(segment.allocated_bytes for segment in orphans))
        if facts.unreadable_pids:
            pids = ", ".join(map(str, facts.unreadable_pids[:3]))
            unread = f"what {len(facts.unreadable_pids)} processes use can't be read (pid {pids})"
            reason = f"{names}{more} ({total}) may be orphaned, but {unread}: kept"
            return warn(
                reason, "as root, outside a container: sudo sparkd preflight; end processes with very many mappings"
            )
        fixes = tuple(
            UnlinkSegment(orphan.path, orphan.device, orphan.inode, orphan.allocated_bytes) for orphan in orphans
        )
        return warn(f"{names}{more} hold {total} and belong to no process", by_start("unlinks them"), fixes)

    def _orphaned(self, segment: SegmentFacts, facts: ShmFacts) -> bool:
        old = YOUNGEST_SECONDS < segment.age_seconds <= facts.uptime_seconds
        return (
            not segment.used_by
            and (segment.of_rank or (old and segment.uid in self.owners))
            and segment.device == facts.own_device
            and segment.links == 1
        )
