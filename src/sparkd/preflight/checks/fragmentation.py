"""Free memory in large blocks, as the driver of the GPU takes it."""

from __future__ import annotations

from sparkd.host import Host
from sparkd.host.meminfo import FreeMemory
from sparkd.lib.text import size
from sparkd.preflight.check import Check, Level, Verdict, ok, warn
from sparkd.preflight.fixes import CompactMemory

HINT = """compact it: echo 1 > /proc/sys/vm/compact_memory; where that gains little, reboot this node. Do not raise
vm.min_free_kbytes for it: vLLM's check of free memory at its start then fails"""


class FragmentedMemory(Check[FreeMemory], frozen=True):
    """It never blocks, also where it cannot look: most starts on such a node succeed."""

    wanted_bytes: int
    uses_gpu: bool = True
    id = "memory-fragmented"
    levels = (Level.WARN,)
    reads = "/proc/buddyinfo; CmaFree of /proc/meminfo"
    source = """tonyd2wild/GLM-5.3-Flash-NVFP4-DFlash2-2x-DGX-Spark pull request 19 (measured, September 2026);
    FujitsuPolycom/sparkring issue 173; MiaAI-Lab/DeepSeek-v4.1-Flash-DGX-Sparks issue 23"""
    fixes = ("compact-memory",)
    page = """\
The driver of GB10 takes its memory in blocks of 2 MiB and more. After days of serving, or when a load has filled memory
with page cache, 118 GiB can be available with hardly any such block left. The driver then fails (NV_ERR_NO_MEMORY), or
the kernel searches for blocks at each request: loads took ten times as long, and nodes froze.

Counted is the free memory in blocks of 2 MiB or more, of all zones of all nodes, less what the driver cannot get: the
zone Movable and the contiguous area (CmaFree).

  warn  it is less than memory.contiguous_gib (8; 0 turns the check off). Preflight has the kernel compact memory: it
        moves pages that are in use together, so that free ones merge. The page cache is dropped first where that helps.
        Pages of the kernel and of drivers do not move: if little is gained, only a reboot helps.
        It also warns where it cannot look: a node without /proc/buddyinfo has no such guard.

While the engine loads, sparkd does the same until it serves (docs/load-guard.md). It sets no kernel setting for it.
One report recommends vm.min_free_kbytes of 3 to 5 GiB and vm.vfs_cache_pressure=200. Another measured that 4 GiB take
6.2 GiB off MemAvailable, so that vLLM's own check failed (98.89 GiB found, 102.22 GiB needed). Its pair had no failure
of the driver since page cache is dropped and memory compacted below 8 GiB free."""

    def probe(self, host: Host) -> FreeMemory:
        return host.free_memory()

    def judge(self, facts: FreeMemory) -> Verdict:
        reason = f"{size(facts.large_bytes)} of {size(facts.bytes)} free memory is in blocks of 2 MiB or more"
        if facts.large_bytes >= self.wanted_bytes:
            return ok(reason)
        if not self.uses_gpu:
            return ok(f"{reason}; the plan uses no GPU")
        reason = f"{reason}, {size(self.wanted_bytes)} wanted"
        return warn(reason, " ".join(HINT.split()), (CompactMemory(self.wanted_bytes),))
