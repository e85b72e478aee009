"""Page cache: what dropping it would free."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from msgspec import Struct

from sparkd.preflight.check import About, Check, Level, Verdict
from sparkd.preflight.fixes import DropPageCache
from sparkd.preflight.sizes import GIB, size

if TYPE_CHECKING:
    from sparkd.host import Host
    from sparkd.preflight.need import MemoryNeed

WORTH_BYTES = 4 * GIB
"""A load of a big model leaves some 100 GiB behind. Below 4 GiB a drop gains nothing that vLLM would notice, and costs
every program its warm pages."""
WORTH_SHARE = 0.1
"""The same for smaller machines: a tenth of the memory."""


class PageCacheFacts(Struct, frozen=True):
    total_bytes: int
    free_bytes: int
    droppable_bytes: int
    """Clean cache of files and slab that nobody maps."""


class PageCache(Check[PageCacheFacts], frozen=True):
    """Worth dropping, or not. It never blocks: MemAvailable counts the page cache as available already."""

    need: MemoryNeed
    id: ClassVar[str] = "page-cache"
    about: ClassVar[About] = About(
        levels=(Level.WARN,),
        reads="/proc/meminfo",
        source="'What Broke on Reboot', Echo, 27 May 2026; vLLM pull request 35356",
        fixes=("drop-page-cache",),
        page="""\
Loading a model fills the page cache with its weights. On a DGX Spark the GPU takes its memory from the same pages:
11 of 120 GiB free and 90 GiB of stale cache were seen to end every launch for a day, since the build of vLLM counted
free pages only. Streaming the weights in also competes with the engine's own allocations.

  warn  dropping the cache (sync, then 3 into /proc/sys/vm/drop_caches) would free at least 4 GiB, or a tenth of a
        smaller memory, and less memory is free than the plan needs. Preflight drops it if nothing else blocks.
  ok    anything else.

Counted is Cached + Buffers + SReclaimable, less Shmem (not to be dropped), Mapped (in use) and Dirty (not yet on
disk).""",
    )

    def probe(self, host: Host) -> PageCacheFacts:
        info = host.meminfo()
        cache = info.cached_bytes + info.buffers_bytes
        kept = info.shared_bytes + info.mapped_bytes + info.dirty_bytes
        return PageCacheFacts(info.total_bytes, info.free_bytes, max(0, cache - kept))

    def judge(self, facts: PageCacheFacts) -> Verdict:
        words = f"{size(facts.droppable_bytes)} could be dropped, {size(facts.free_bytes)} free"
        if facts.free_bytes >= self.need.all_bytes(facts.total_bytes):
            return Verdict(Level.OK, f"{words}, which is enough")
        if facts.droppable_bytes < min(WORTH_BYTES, facts.total_bytes * WORTH_SHARE):
            return Verdict(Level.OK, f"{words}: not worth it")
        return Verdict(
            Level.WARN,
            words,
            "sync, then drop the page cache",
            fixes=(DropPageCache(would_free_bytes=facts.droppable_bytes),),
        )
