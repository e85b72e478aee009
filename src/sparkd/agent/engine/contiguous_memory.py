"""Keeps free memory in large blocks for the GPU's driver, from the launch until the engine serves.

On two Sparks the driver no longer failed once page cache was dropped and memory compacted whenever less than 8 GiB was
free (docs/GB10-UNIFIED-MEMORY-FIELD-REPORT.md of tonyd2wild/GLM-5.3-Flash-NVFP4-DFlash2-2x-DGX-Spark). There, too,
both end when the engine serves: with the model pinned, only some 600 MiB are left in blocks of 2 MiB. The report also
warns of a raised vm.min_free_kbytes: vLLM's check at its start reads MemAvailable, which falls with it.
"""

from collections.abc import Callable
from time import monotonic

from msgspec import Struct

from sparkd.agent.preflight.fixes import WORTH_COMPACTING_BYTES, Applied, CompactMemory
from sparkd.base.host import Host
from sparkd.base.host.meminfo import FreeMemory
from sparkd.base.lib.log import Events

PAUSE_SECONDS = 10.0
LONGEST_PAUSE_SECONDS = 160.0
"""Pause after compactions that gained too little, as where most memory is pinned: six of them fit into ten minutes."""
SHARE = 0.1
"""Largest share of time for compaction, which takes a core for as long as pages move: some 5 s for 10 GiB."""


class CompactionPace(Struct, frozen=True):
    """When memory is looked at again. Times are monotonic."""

    due_at: float = 0.0
    pause_seconds: float = PAUSE_SECONDS

    def after(self, gained_bytes: int, began: float, now: float) -> "CompactionPace":
        """The pace after an attempt. The pause doubles where too little was gained, in bytes of large blocks. Pure."""
        pause_seconds = PAUSE_SECONDS
        if gained_bytes < WORTH_COMPACTING_BYTES:
            pause_seconds = min(2 * self.pause_seconds, LONGEST_PAUSE_SECONDS)
        return CompactionPace(now + max(pause_seconds, (now - began) / SHARE), pause_seconds)


class ContiguousMemory(Struct):
    """Keeps free memory in large blocks, by compaction where it is needed. Used by one thread."""

    host: Host
    wanted_bytes: int
    """Free memory that is wanted in large blocks; 0: nothing is done."""
    compact: Callable[[CompactMemory], Applied]
    events: Events
    _pace: CompactionPace = CompactionPace()

    def keep(self, drop_finished: Callable[[], None]) -> None:
        """Drop the page cache of finished shards, then compact memory, where too little is free in large blocks.

        Blocks for as long as the compaction takes. Reports the first failure and then does nothing any more.
        """
        began = monotonic()
        if not self.wanted_bytes or began < self._pace.due_at:
            return
        try:
            free_before = self.host.free_memory()
            if free_before.large_bytes >= self.wanted_bytes or not free_before.is_listed:
                return
            drop_finished()
            free = self.host.free_memory()
            if free.large_bytes < self.wanted_bytes and free.scattered_bytes >= WORTH_COMPACTING_BYTES:
                free = self._compact(free)
        except (OSError, ValueError) as error:
            hint = "the load continues without it; to turn it off: memory.contiguous_gib = 0"
            self.events.warning("memory.compaction.failed", reason=str(error), hint=hint)
            self.wanted_bytes = 0
        else:
            self._pace = self._pace.after(free.large_bytes - free_before.large_bytes, began, monotonic())

    def _compact(self, free_before: FreeMemory) -> FreeMemory:
        """Compact memory once, and return what is free then. Raises OSError where the kernel refuses it."""
        began = monotonic()
        applied = self.compact(CompactMemory(self.wanted_bytes))
        if applied.state == "failed":
            raise OSError(applied.note)
        free_after = self.host.free_memory()
        self.events.info(
            "memory.compaction.finished",
            free_bytes=free_after.bytes,
            large_bytes=free_after.large_bytes,
            gained_bytes=free_after.large_bytes - free_before.large_bytes,
            seconds=round(monotonic() - began, 1),
        )
        return free_after
