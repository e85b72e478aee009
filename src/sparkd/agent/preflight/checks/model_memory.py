"""Model memory: whether weights and KV cache fit the share of the memory that the engine takes."""

from __future__ import annotations

from msgspec import Struct

from sparkd.agent.preflight.check import Check, Level, Verdict, block, ok, skipped, warn
from sparkd.base.config import Settings
from sparkd.base.host import Host
from sparkd.base.plan.compile_jobs import read_room
from sparkd.base.plan.memory_sum import MemorySum, ModelFit, read_sum
from sparkd.base.plan.model import LaunchPlan
from sparkd.base.recipes.additions import MAX_JOBS

HINTS = {
    ModelFit.WEIGHTS_TOO_BIG: "serve it on more nodes, or a smaller model: sparkd use --list",
    ModelFit.REQUEST_TOO_BIG: "lower max-model-len",
}


class ModelMemoryFacts(Struct, frozen=True):
    share_bytes: int = 0
    weights_bytes: int | None = None
    request_bytes: int | None = None
    tokens: int | None = None
    compile_jobs: int | None = None
    """Compilers at once that the room beside the weights holds."""
    _sum: MemorySum | None = None
    """None where the plan's flags are not those of the engine, or the memory is no GPU's."""
    _excess: str = ""


class ModelMemory(Check[ModelMemoryFacts], frozen=True):
    plan: LaunchPlan
    settings: Settings
    id = "model-memory"
    levels = (Level.WARN, Level.BLOCK)

    def probe(self, host: Host) -> ModelMemoryFacts:
        if self.plan.container.gpus != "all" or self.plan.user_script:
            return ModelMemoryFacts()
        memory = read_sum(self.plan, self.settings, host)
        expected = memory.weights.expected if memory.weights else None
        room = read_room(self.plan, self.settings, host, memory)
        excess = room.describe_excess(self.plan)
        return ModelMemoryFacts(
            memory.share_bytes, expected, memory.request_bytes, memory.tokens, room.jobs, memory, excess
        )

    def judge(self, facts: ModelMemoryFacts) -> Verdict:
        memory = facts._sum
        if memory is None and self.plan.user_script:
            return skipped("not summed: engine.script starts the engine its own way")
        if memory is None:
            return ok("the plan uses no GPU")
        if memory.weights is None or not memory.share_bytes:
            return skipped("not summed: the memory or what is loaded into it is not known")
        if memory.fit not in HINTS and facts._excess:
            return warn(facts._excess, f"take {MAX_JOBS} out: sparkd sets it to {facts.compile_jobs} here")
        if memory.fit not in HINTS:
            return ok(memory.describe())
        worst = block if memory.fit is ModelFit.WEIGHTS_TOO_BIG else warn
        return worst(memory.describe(), HINTS[memory.fit])
