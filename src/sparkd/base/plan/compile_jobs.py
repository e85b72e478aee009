"""How many compilers may run at once beside a rank's weights.

On a cold cache the engine compiles kernels once the weights are in memory and before the KV cache is. FlashInfer and
torch's extensions do so with ninja, which starts two jobs more than there are cores: on a GB10, whose GPU shares
the machine's memory, that takes all of it. DeepGEMM, TileLang and CuTe DSL compile one kernel at a time.
"""

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
Its eleven instances for SM120 take 7.3 to 10.4 GiB each; three at once were measured at 26.3 GiB, nine at 66.5."""
FURTHER_GIB = 2.2
"""Memory of each further job, which compiles none of the largest files."""
MOST_JOBS = 22
"""Jobs that ninja starts on a GB10."""
SYSTEM_GIB = 10
"""Memory of the system and other programs: an idle GB10 has 110 to 117 of 121.6 GiB available."""
LOADED = 1.17
"""Weights in memory, divided by those in the files: 80.7 GiB by 69.4, DeepSeek-V4-Flash on two GB10
(vllm-project/vllm PR 41834, 5 Aug 2026). They never take more than the share."""


def needed_bytes(jobs: int) -> int:
    """Memory of so many compilers at once."""
    largest_gib = JOBS_GIB[min(jobs, len(JOBS_GIB)) - 1]
    return round((largest_gib + FURTHER_GIB * max(0, jobs - len(JOBS_GIB))) * GIB)


class CompileRoom(Struct, frozen=True):
    """The parts of the machine's memory, in bytes."""

    total_bytes: int
    rank_bytes: int
    """The weights as loaded, or the share where those are unknown; 0 where the GPU has memory of its own."""
    headroom_bytes: int
    weights_known: bool = True
    ranks: int = 1
    """Ranks of this node. Each starts compilers of its own."""

    @property
    def room_bytes(self) -> int:
        """Memory left for the compilers of all ranks."""
        return self.total_bytes - self.rank_bytes - self.headroom_bytes - SYSTEM_GIB * GIB

    @property
    def jobs(self) -> int:
        """Compilers of each rank that have room; 1 where none has, because no engine starts without one."""
        return max((jobs for jobs in range(1, MOST_JOBS + 1) if self._needed_bytes(jobs) <= self.room_bytes), default=1)

    def _needed_bytes(self, jobs: int) -> int:
        return needed_bytes(jobs * self.ranks)

    def describe(self) -> str:
        """The number of compilers, their memory, and the room for them."""
        rank_part = "weights" if self.weights_known else "the rank's share"
        others = f"{rank_part} of {size(self.rank_bytes)}, the " if self.rank_bytes else "the "
        needed = self._needed_bytes(self.jobs)
        relation = "of" if needed <= self.room_bytes else "more than the"
        per_rank = f" in each of {self.ranks} ranks" if self.ranks > 1 else ""
        return (
            f"{self.jobs} at a time{per_rank}: {size(needed)} at the worst, {relation} {size(max(0, self.room_bytes))} "
            f"beside {others}system ({SYSTEM_GIB} GiB) and headroom"
        )

    def describe_excess(self, plan: LaunchPlan) -> str:
        """A fault of the number of compilers that recipe or settings name; empty where there is none."""
        wanted = parse_count(dict(plan.env).get(MAX_JOBS), 1 << 20) or MOST_JOBS
        needed = self._needed_bytes(wanted)
        if wanted == 1 or needed <= self.room_bytes or plan.container.gpus != "all":
            return ""
        return (
            f"on a cold cache {wanted * self.ranks} compilers at once ({MAX_JOBS}) take {size(needed)} at the worst, "
            f"and {size(max(0, self.room_bytes))} are left beside weights and system"
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
