"""Model memory: whether weights and KV cache fit into the share of the memory that the plan gives the engine."""

from msgspec import Struct

from sparkd.agent.preflight.check import Check, Level, Verdict, block, ok, skipped, warn
from sparkd.base.config import Settings
from sparkd.base.host import Host
from sparkd.base.plan.compile_jobs import read_room
from sparkd.base.plan.memory_sum import MemorySum, ModelFit, read_sum
from sparkd.base.plan.model import LaunchPlan
from sparkd.base.recipes.additions import MAX_JOBS


class ModelMemoryFacts(Struct, frozen=True):
    share_bytes: int = 0
    weights_bytes: int | None = None
    request_bytes: int | None = None
    tokens: int | None = None
    compile_jobs: int | None = None
    """How many compilers at once fit into the memory beside the weights."""
    _sum: MemorySum | None = None
    """The sum; None where engine.script starts the engine, or the plan uses no GPU."""
    _excess: str = ""
    """What is wrong with the plan's own number of compilers; empty where nothing is."""


class ModelMemory(Check[ModelMemoryFacts], frozen=True):
    plan: LaunchPlan
    settings: Settings
    id = "model-memory"
    levels = (Level.WARN, Level.BLOCK)

    def probe(self, host: Host) -> ModelMemoryFacts:
        if self.plan.container.gpus != "all" or self.plan.user_script:
            return ModelMemoryFacts()
        memory = read_sum(self.plan, self.settings, host)
        room = read_room(self.plan, self.settings, host, memory)
        return ModelMemoryFacts(
            share_bytes=memory.share_bytes,
            weights_bytes=memory.weights.expected if memory.weights else None,
            request_bytes=memory.request_bytes,
            tokens=memory.tokens,
            compile_jobs=room.jobs,
            _sum=memory,
            _excess=room.describe_excess(self.plan),
        )

    def judge(self, facts: ModelMemoryFacts) -> Verdict:
        memory = facts._sum
        if memory is None and self.plan.user_script:
            return skipped("not summed: engine.script starts the engine its own way")
        if memory is None:
            return ok("the plan uses no GPU")
        if memory.weights is None or not memory.share_bytes:
            return skipped("not summed: the memory or what is loaded into it is not known")
        if memory.fit is ModelFit.WEIGHTS_TOO_BIG:
            return block(memory.describe(), "serve it on more nodes, or a smaller model: sudo sparkd use --list")
        if memory.fit is ModelFit.REQUEST_TOO_BIG:
            return warn(memory.describe(), "lower max-model-len")
        if facts._excess:
            return warn(facts._excess, f"take {MAX_JOBS} out: sparkd sets it to {facts.compile_jobs} here")
        return ok(memory.describe())
