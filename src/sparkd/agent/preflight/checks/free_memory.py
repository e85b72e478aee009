"""Free memory: page cache that could be dropped, swap, and large blocks, which the GPU's driver takes."""

from msgspec import Struct

from sparkd.agent.preflight.check import Check, Level, Verdict, ok, skipped, warn
from sparkd.agent.preflight.fixes import WORTH_COMPACTING_BYTES, CompactMemory, DropPageCache, by_hand, by_start
from sparkd.base.config import Settings
from sparkd.base.host import Host, meminfo
from sparkd.base.host.meminfo import FreeMemory, Swap
from sparkd.base.lib.text import GIB, size
from sparkd.base.plan.inputs import MemoryNeed

WORTH_BYTES = 4 * GIB
"""Least page cache that is worth a drop: less gains nothing that vLLM would notice, and costs every program its warm
pages. A load of a big model leaves some 100 GiB of cache behind."""
WORTH_SHARE = 0.1
"""The same on smaller machines, as a share of the memory."""


class PageCacheFacts(Struct, frozen=True):
    total_bytes: int
    free_bytes: int
    droppable_bytes: int
    """Clean cache of files and slab that nobody maps."""


class PageCache(Check[PageCacheFacts], frozen=True):
    """Whether the page cache is worth dropping. It never blocks: MemAvailable counts the cache as available already."""

    need: MemoryNeed
    id = "page-cache"
    levels = (Level.WARN,)
    fixes = ("drop-page-cache",)

    def probe(self, host: Host) -> PageCacheFacts:
        memory = host.meminfo()
        cache_bytes = memory.cached_bytes + memory.buffers_bytes
        undroppable_bytes = memory.shared_bytes + memory.mapped_bytes + memory.dirty_bytes
        return PageCacheFacts(memory.total_bytes, memory.free_bytes, max(0, cache_bytes - undroppable_bytes))

    def judge(self, facts: PageCacheFacts) -> Verdict:
        description = f"{size(facts.droppable_bytes)} could be dropped, {size(facts.free_bytes)} free"
        if not self.need.is_known:
            return ok(description)
        if facts.free_bytes >= self.need.all_bytes(facts.total_bytes):
            return ok(f"{description}, which is enough")
        if facts.droppable_bytes < min(WORTH_BYTES, facts.total_bytes * WORTH_SHARE):
            return ok(f"{description}: not worth it")
        return warn(description, by_start("drops it"), (DropPageCache(),))


class SwapFacts(Struct, frozen=True):
    areas: tuple[Swap, ...]


class SwapOff(Check[SwapFacts], frozen=True):
    uses_gpu: bool = True
    id = "swap"
    levels = (Level.WARN,)

    def probe(self, host: Host) -> SwapFacts:
        return SwapFacts(meminfo.read_swaps(host.files))

    def judge(self, facts: SwapFacts) -> Verdict:
        if not facts.areas:
            return ok("off")
        areas = ", ".join(
            f"{area.path} {size(area.bytes)}{' in memory' if area.in_memory else ''}" for area in facts.areas
        )
        used_bytes = sum(area.used_bytes for area in facts.areas)  # in no hint, whose change is a new decision
        reason = f"swap is on: {areas}; {size(used_bytes)} in use"
        if not self.uses_gpu:
            return ok(f"{reason}; the plan uses no GPU")
        all_zram = all(area.in_memory for area in facts.areas)
        permanent_remedy = "see systemctl list-units '*zram*'" if all_zram else "take its line out of /etc/fstab"
        # Else the memory guard, or the kernel, may end the engine because of it.
        when = "while no engine runs, as it reads what is in use back into memory: " if used_bytes else ""
        return warn(reason, f"{when}sudo swapoff -a, and for good: {permanent_remedy}")


class FragmentedMemory(Check[FreeMemory], frozen=True):
    """Free memory in large blocks. It never blocks, also where it cannot look: most starts on such a node succeed."""

    settings: Settings
    uses_gpu: bool = True
    id = "memory-fragmented"
    levels = (Level.WARN,)
    fixes = ("compact-memory",)

    def probe(self, host: Host) -> FreeMemory:
        return host.free_memory()

    def judge(self, facts: FreeMemory) -> Verdict:
        if not facts.is_listed:
            free = size(facts.bytes + facts.unlisted_bytes)
            return skipped(f"not judged: the kernel lists {size(facts.bytes)} of the {free} that are free")
        reason = f"{size(facts.large_bytes)} of {size(facts.bytes)} free memory is in blocks of 2 MiB or more"
        wanted_bytes = round(self.settings.memory.contiguous_gib * GIB)
        if facts.large_bytes >= wanted_bytes:
            return ok(reason)
        if not self.uses_gpu:
            return ok(f"{reason}; the plan uses no GPU")
        reason = f"{reason}, {size(wanted_bytes)} wanted"
        if facts.scattered_bytes < WORTH_COMPACTING_BYTES:  # there is nothing to merge
            hint = f"see what has it: free -h; page cache is given back by: {by_hand(DropPageCache())}"
            return warn(f"{reason}: too little is free", hint)
        fix = CompactMemory(wanted_bytes)
        hint = f"compact it: {by_hand(fix)}; where that gains little, reboot this node. "
        hint += "Do not raise vm.min_free_kbytes for it: vLLM's check of free memory at its start then fails"
        return warn(reason, hint, (fix,))
