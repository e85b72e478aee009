"""The checks of a node, in order, built from its plan and settings."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sparkd import units
from sparkd.preflight import needed, weights
from sparkd.preflight.disk import DiskRoom
from sparkd.preflight.gpu import Gpu
from sparkd.preflight.kernel import Kernel
from sparkd.preflight.kernel_log import KernelLog
from sparkd.preflight.kernel_settings import KernelSettings
from sparkd.preflight.last_boot import LastBoot
from sparkd.preflight.memlock import Memlock
from sparkd.preflight.memory import MemorySample, UnifiedMemory
from sparkd.preflight.memory_held import MemoryHeld
from sparkd.preflight.memory_limit import MemoryLimit
from sparkd.preflight.need import MemoryNeed
from sparkd.preflight.page_cache import PageCache
from sparkd.preflight.plan_lint import PlanLint
from sparkd.preflight.remove_ipc import RemoveIpc
from sparkd.preflight.scripts import ScriptPaths, WantedDropIn
from sparkd.preflight.shm import SharedMemory
from sparkd.preflight.shm_size import ShmSize
from sparkd.preflight.strays import StrayWorkers
from sparkd.preflight.swap import SwapOff
from sparkd.preflight.tenants import OtherTenants
from sparkd.roles import engine_checks, fabric_checks

if TYPE_CHECKING:
    from sparkd.preflight.check import AnyCheck
    from sparkd.roles import NodeContext

GIB = 1 << 30


def build(node: NodeContext, earlier: MemorySample | None) -> tuple[AnyCheck, ...]:
    plan, settings = node.plan, node.settings
    need = MemoryNeed(plan.memory_bytes, plan.gpu_memory_utilization, round(settings.memory.headroom_gib * GIB))
    uses_gpu = plan.container.gpus == "all"
    host_ipc = plan.container.ipc == "host"
    drop_in = next(one for one in units.dropins(node.configured) if one.role == node.role)
    return (
        ScriptPaths(node.unit, needed.of_plan(plan), WantedDropIn(drop_in.path, drop_in.text, units.HEADER)),
        PlanLint(plan),
        weights.of_plan(plan),
        DiskRoom(bool(plan.caches)),
        LastBoot(plan.counted_as, f"sparkd-{node.role}"),
        Kernel(),
        KernelLog(uses_gpu),
        KernelSettings(plan.sysctls),
        Gpu(uses_gpu),
        *engine_checks.of_docker(node),
        StrayWorkers(),
        *engine_checks.of_others(node),
        SharedMemory(),
        ShmSize(host_ipc, plan.container.shm_bytes, node.is_head, plan.node.cluster_size),
        RemoveIpc(plan.image_to_run, host_ipc),
        Memlock(plan),
        MemoryLimit(uses_gpu, plan.container.memory_limit_bytes, settings.memory.floor_mib << 20, need.headroom_bytes),
        PageCache(need),
        UnifiedMemory(need, settings.memory.settle_seconds, uses_gpu, earlier),
        OtherTenants(need, uses_gpu),
        MemoryHeld(uses_gpu),
        SwapOff(uses_gpu),
        *fabric_checks.build(node),
    )
