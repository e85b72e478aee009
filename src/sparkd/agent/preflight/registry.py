"""Every check, in the order in which they run."""

from __future__ import annotations

from msgspec.structs import replace

from sparkd.agent.preflight.check import AnyCheck
from sparkd.agent.preflight.checks.compile_cache import CompileCache
from sparkd.agent.preflight.checks.disk import DiskRoom
from sparkd.agent.preflight.checks.docker import Docker, EngineImage, StaleContainer
from sparkd.agent.preflight.checks.fabric import FabricAddress, FabricLink, PeerClocks
from sparkd.agent.preflight.checks.foreign_units import ForeignUnits
from sparkd.agent.preflight.checks.gpu import Gpu
from sparkd.agent.preflight.checks.kernel import Kernel, KernelSettings
from sparkd.agent.preflight.checks.kernel_log import KernelLog
from sparkd.agent.preflight.checks.last_boot import LastBoot
from sparkd.agent.preflight.checks.limits import Memlock, MemoryLimit
from sparkd.agent.preflight.checks.memory import FragmentedMemory, PageCache, SwapOff, UnifiedMemory
from sparkd.agent.preflight.checks.memory_users import OtherTenants, UnaccountedMemory
from sparkd.agent.preflight.checks.paths import ScriptPaths
from sparkd.agent.preflight.checks.plan_lint import PlanLint
from sparkd.agent.preflight.checks.ports import Listeners, Ports
from sparkd.agent.preflight.checks.rdma import GidIndex, Rdma
from sparkd.agent.preflight.checks.shared_memory import RemoveIpc, SharedMemory, ShmSize
from sparkd.agent.preflight.checks.stray_workers import StrayWorkers
from sparkd.agent.preflight.checks.weights import ModelWeights
from sparkd.base.config import Settings
from sparkd.base.plan.inputs import CheckInputs, MemorySample, PlanNeededError

CHECKS: tuple[type[AnyCheck], ...] = (
    ScriptPaths,
    PlanLint,
    ModelWeights,
    DiskRoom,
    LastBoot,
    Kernel,
    KernelLog,
    KernelSettings,
    Gpu,
    Docker,
    EngineImage,
    CompileCache,
    StrayWorkers,
    StaleContainer,
    ForeignUnits,
    Ports,
    SharedMemory,
    ShmSize,
    RemoveIpc,
    Memlock,
    MemoryLimit,
    PageCache,
    FragmentedMemory,
    UnifiedMemory,
    OtherTenants,
    UnaccountedMemory,
    SwapOff,
    FabricAddress,
    FabricLink,
    Rdma,
    GidIndex,
    Listeners,
    PeerClocks,
)
IDS = tuple(check.id for check in CHECKS)
RETIRED_IDS = ("resolver",)
"""Of checks of earlier versions: a configuration that names one is still good."""


def build_checks(inputs: CheckInputs, earlier: MemorySample | None = None) -> tuple[AnyCheck, ...]:
    """`earlier` is the first look at the memory, where there was one."""
    return tuple(check.from_inputs(replace(inputs, earlier=earlier)) for check in CHECKS)


def build_unplanned(settings: Settings) -> dict[str, AnyCheck | None]:
    """For a node without a plan, by id: the checks that need none, and None for the others."""

    def build(check: type[AnyCheck]) -> AnyCheck | None:
        try:
            return check.from_inputs(CheckInputs(None, settings))
        except PlanNeededError:
            return None

    return {check.id: build(check) for check in CHECKS}
