"""Model memory: whether weights and KV cache fit the share of the memory that the engine takes."""

from __future__ import annotations

from msgspec import Struct

from sparkd.agent.preflight.check import Check, Level, Verdict, block, ok, skipped, warn
from sparkd.base.config import Settings
from sparkd.base.host import Host
from sparkd.base.plan.memory_sum import MemorySum, ModelFit, read_sum
from sparkd.base.plan.model import LaunchPlan

HINTS = {
    ModelFit.WEIGHTS_TOO_BIG: "serve it on more nodes, or a smaller model: sparkd use --list",
    ModelFit.REQUEST_TOO_BIG: "lower max-model-len",
}


class ModelMemoryFacts(Struct, frozen=True):
    share_bytes: int = 0
    weights_bytes: int | None = None
    request_bytes: int | None = None
    tokens: int | None = None
    _sum: MemorySum | None = None
    """None where the plan's flags are not those of the engine, or the memory is no GPU's."""


class ModelMemory(Check[ModelMemoryFacts], frozen=True):
    plan: LaunchPlan
    settings: Settings
    id = "model-memory"
    levels = (Level.WARN, Level.BLOCK)

    def probe(self, host: Host) -> ModelMemoryFacts:
        if self.plan.container.gpus != "all" or self.plan.user_script:
            return ModelMemoryFacts()
        found = read_sum(self.plan, self.settings, host)
        expected = found.weights.expected if found.weights else None
        return ModelMemoryFacts(found.share_bytes, expected, found.request_bytes, found.tokens, found)

    def judge(self, facts: ModelMemoryFacts) -> Verdict:
        found = facts._sum
        if found is None and self.plan.user_script:
            return skipped("not summed: engine.script starts the engine its own way")
        if found is None:
            return ok("the plan uses no GPU")
        if found.weights is None or not found.share_bytes:
            return skipped("not summed: the memory or what is loaded into it is not known")
        if found.fit not in HINTS:
            return ok(found.describe())
        worst = block if found.fit is ModelFit.WEIGHTS_TOO_BIG else warn
        return worst(found.describe(), HINTS[found.fit])
