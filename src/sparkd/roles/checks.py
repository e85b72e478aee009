"""The checks of a node, in order, built from its plan and settings."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sparkd import units
from sparkd.preflight import needed
from sparkd.preflight.memory import MemorySample, UnifiedMemory
from sparkd.preflight.need import MemoryNeed
from sparkd.preflight.page_cache import PageCache
from sparkd.preflight.scripts import ScriptPaths, WantedDropIn
from sparkd.preflight.shm import SharedMemory
from sparkd.preflight.strays import StrayWorkers

if TYPE_CHECKING:
    from sparkd.preflight.check import AnyCheck
    from sparkd.roles import NodeContext

GIB = 1 << 30


def build(node: NodeContext, earlier: MemorySample | None) -> tuple[AnyCheck, ...]:
    plan, settings = node.plan, node.settings
    need = MemoryNeed(plan.memory_bytes, plan.gpu_memory_utilization, round(settings.memory.headroom_gib * GIB))
    drop_in = next(one for one in units.dropins(settings) if one.role == node.role)
    return (
        ScriptPaths(node.unit, needed.of_plan(plan), WantedDropIn(drop_in.path, drop_in.text, units.HEADER)),
        StrayWorkers(_ports(node)),
        SharedMemory(),
        PageCache(need),
        UnifiedMemory(need, settings.memory.settle_seconds, plan.container.gpus == "all", earlier),
    )


def _ports(node: NodeContext) -> tuple[int, ...]:
    """That the rank will listen on. A worker serves no API, and comes to the head's master port."""
    plan = node.plan
    if not node.is_head:
        return ()
    return (plan.api_port, plan.master_port) if plan.node.cluster_size > 1 else (plan.api_port,)
