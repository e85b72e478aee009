"""Free memory in large blocks, as the driver of the GPU takes it."""

from __future__ import annotations

from sparkd.host import Host
from sparkd.host.meminfo import FreeMemory
from sparkd.lib.text import GIB, size
from sparkd.preflight.check import Check, Level, Verdict, ok, warn
from sparkd.preflight.fixes import CompactMemory
from sparkd.preflight.inputs import CheckInputs

HINT = """compact it: echo 1 > /proc/sys/vm/compact_memory; where that gains little, reboot this node. Do not raise
vm.min_free_kbytes for it: vLLM's check of free memory at its start then fails"""


class FragmentedMemory(Check[FreeMemory], frozen=True):
    """It never blocks, also where it cannot look: most starts on such a node succeed."""

    wanted_bytes: int
    uses_gpu: bool = True
    id = "memory-fragmented"
    levels = (Level.WARN,)
    fixes = ("compact-memory",)

    @classmethod
    def from_inputs(cls, inputs: CheckInputs) -> FragmentedMemory:
        return cls(round(inputs.settings.memory.contiguous_gib * GIB), inputs.uses_gpu)

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
