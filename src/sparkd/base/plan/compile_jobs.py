"""How many compilers may run at once beside a rank's weights.

On a cold cache the engine compiles kernels once the weights are in memory and before the KV cache is. FlashInfer and
torch's extensions do so with ninja, which starts as many jobs as there are cores, and two: on a GB10, whose GPU shares
the machine's memory, that takes all of it. DeepGEMM, TileLang and CuTe DSL compile one kernel at a time.
"""

from __future__ import annotations

from contextlib import suppress

from msgspec import Struct

from sparkd.base.config import Settings
from sparkd.base.host import Host
from sparkd.base.lib.text import GIB, size
from sparkd.base.plan.inputs import CheckInputs, MemoryNeed
from sparkd.base.plan.memory_sum import MemorySum, read_sum
from sparkd.base.plan.model import LaunchPlan
from sparkd.base.recipes.additions import MAX_JOBS
from sparkd.base.vllm.args import parse_count

JOBS_GIB = (11, 21, 30, 40, 49, 57, 65, 74, 82, 90, 97)
"""Memory of 1 to 11 of FlashInfer's largest compiles at once: nvcc 13.0 for 12.1a, fused_moe_120 of FlashInfer 0.6.12.
Its eleven instances for SM120 take 7.3 to 10.4 each; three at once were seen to take 26.3, nine 66.5."""
FURTHER_GIB = 2.2
"""Memory of each further job, which is none of those."""
MOST_JOBS = 22
"""What ninja starts on a GB10."""
SYSTEM_GIB = 10
"""Memory of what else runs: an idle GB10 has 110 to 117 of 121.6 GiB available."""
LOADED = 1.17
"""Weights in memory by those in the files: 80.7 GiB of 69.4, DeepSeek-V4-Flash on two GB10 (vllm-project/vllm PR
41834, 5 Aug 2026). Never more than the share."""


def needed_bytes(jobs: int) -> int:
    of_largest = JOBS_GIB[min(jobs, len(JOBS_GIB)) - 1]
    return round((of_largest + FURTHER_GIB * max(0, jobs - len(JOBS_GIB))) * GIB)


class CompileRoom(Struct, frozen=True):
    """The parts of the machine's memory, in bytes."""

    total_bytes: int
    rank_bytes: int
    """The weights as loaded, or the share where those are unknown; 0 where the GPU has memory of its own."""
    headroom_bytes: int
    weights_known: bool = True
    ranks: int = 1
    """Of this node, each with so many compilers."""

    @property
    def bytes_(self) -> int:
        return self.total_bytes - self.rank_bytes - self.headroom_bytes - SYSTEM_GIB * GIB

    @property
    def jobs(self) -> int:
        """The number of a rank that the room holds; 1 where it holds none, for without a compiler nothing starts."""
        return max((jobs for jobs in range(1, MOST_JOBS + 1) if self._needed_bytes(jobs) <= self.bytes_), default=1)

    def _needed_bytes(self, jobs: int) -> int:
        return needed_bytes(jobs * self.ranks)

    def describe(self) -> str:
        held = "weights" if self.weights_known else "the rank's share"
        beside = f"{held} of {size(self.rank_bytes)}, the " if self.rank_bytes else "the "
        needed = self._needed_bytes(self.jobs)
        of = "of" if needed <= self.bytes_ else "more than the"
        each = f" in each of {self.ranks} ranks" if self.ranks > 1 else ""
        return (
            f"{self.jobs} at a time{each}: {size(needed)} at the worst, {of} {size(max(0, self.bytes_))} "
            f"beside {beside}system ({SYSTEM_GIB} GiB) and headroom"
        )

    def describe_excess(self, plan: LaunchPlan) -> str:
        """What is wrong with the number that recipe or settings name; empty where nothing is."""
        wanted = parse_count(dict(plan.env).get(MAX_JOBS), 1 << 20) or MOST_JOBS
        needed = self._needed_bytes(wanted)
        if wanted == 1 or needed <= self.bytes_ or plan.container.gpus != "all":
            return ""
        return (
            f"on a cold cache {wanted * self.ranks} compilers at once ({MAX_JOBS}) take {size(needed)} at the worst, "
            f"and {size(max(0, self.bytes_))} are left beside weights and system"
        )


def find_room(total_bytes: int, memory: MemorySum | None, need: MemoryNeed, ranks: int = 1) -> CompileRoom:
    """The room on a node whose GPU shares its memory."""
    share_bytes = need.engine_bytes(total_bytes)
    if memory is None or memory.weights is None:
        return CompileRoom(total_bytes, share_bytes, need.headroom_bytes, weights_known=False, ranks=ranks)
    loaded_bytes = min(share_bytes, round(memory.weights.expected * LOADED))
    return CompileRoom(total_bytes, loaded_bytes, need.headroom_bytes, ranks=ranks)


def read_room(plan: LaunchPlan, settings: Settings, host: Host, memory: MemorySum | None = None) -> CompileRoom:
    """The room beside a plan's rank. `memory`: the plan's sum, if it is known already. Raises OSError, ValueError."""
    total_bytes = host.meminfo().total_bytes
    inputs = CheckInputs(plan, settings)
    if plan.container.gpus != "all" or host.gpu().total_bytes is not None:
        return CompileRoom(total_bytes, 0, inputs.need.headroom_bytes, ranks=plan.gpus)
    with suppress(OSError, ValueError):
        memory = memory or read_sum(plan, settings, host)
    return find_room(total_bytes, memory, inputs.need, plan.gpus)
