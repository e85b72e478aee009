"""Every check, in the order in which they run, each with what it is built from."""

from __future__ import annotations

from collections.abc import Callable

from msgspec.structs import replace

from sparkd.config import Settings
from sparkd.lib.text import GIB
from sparkd.preflight.check import AnyCheck
from sparkd.preflight.checks.compile_cache import CompileCache
from sparkd.preflight.checks.disk import DiskRoom
from sparkd.preflight.checks.docker import Docker, EngineImage, StaleContainer
from sparkd.preflight.checks.fabric import FabricAddress, FabricLink
from sparkd.preflight.checks.foreign_units import ForeignUnits
from sparkd.preflight.checks.fragmentation import FragmentedMemory
from sparkd.preflight.checks.gid import GidIndex
from sparkd.preflight.checks.gpu import Gpu
from sparkd.preflight.checks.kernel import Kernel, KernelSettings
from sparkd.preflight.checks.kernel_log import KernelLog
from sparkd.preflight.checks.last_boot import LastBoot
from sparkd.preflight.checks.limits import Memlock, MemoryLimit, MemoryLimitFacts
from sparkd.preflight.checks.memory import PageCache, SwapOff, UnifiedMemory
from sparkd.preflight.checks.memory_users import OtherTenants, UnaccountedMemory
from sparkd.preflight.checks.paths import ScriptPaths, paths_of_plan
from sparkd.preflight.checks.peers import PeerClocks
from sparkd.preflight.checks.plan_lint import PlanLint
from sparkd.preflight.checks.ports import Listeners, Ports, wanted_ports
from sparkd.preflight.checks.rdma import Rdma, why_no_rdma
from sparkd.preflight.checks.shared_memory import RemoveIpc, SharedMemory, ShmSize
from sparkd.preflight.checks.stray_workers import StrayWorkers
from sparkd.preflight.checks.weights import ModelWeights
from sparkd.preflight.inputs import CheckInputs, MemorySample, PlanNeededError

CHECKS: dict[type[AnyCheck], Callable[[CheckInputs], AnyCheck]] = {
    ScriptPaths: lambda node: ScriptPaths(f"sparkd-{node.role}.service", paths_of_plan(node.plan), node.drop_in),
    PlanLint: lambda node: PlanLint(node.plan),
    ModelWeights: lambda node: ModelWeights.from_plan(node.plan),
    DiskRoom: lambda node: DiskRoom(node.made_plan is None or bool(node.plan.caches)),
    LastBoot: lambda node: LastBoot(node.plan.counted_as, f"sparkd-{node.role}"),
    Kernel: lambda _: Kernel(),
    KernelLog: lambda node: KernelLog(node.uses_gpu),
    KernelSettings: lambda node: KernelSettings(node.plan.sysctls),
    Gpu: lambda node: Gpu(node.uses_gpu),
    Docker: lambda node: Docker(node.uses_gpu),
    EngineImage: lambda node: EngineImage.from_plan(node.plan),
    CompileCache: lambda node: CompileCache.from_plan(node.plan, node.need),
    StrayWorkers: lambda node: StrayWorkers(rendezvous=node.settings.cluster.master_port),
    StaleContainer: lambda node: StaleContainer(f"sparkd-rank{node.plan.node.rank}"),
    ForeignUnits: lambda _: ForeignUnits(),
    Ports: lambda node: Ports(wanted_ports(node.plan, node.settings)),
    SharedMemory: lambda _: SharedMemory(),
    ShmSize: lambda node: ShmSize(
        None if node.host_ipc else node.plan.container.shm_size_bytes,
        node.plan.node.rank == 0,
        node.plan.node.cluster_size,
    ),
    RemoveIpc: lambda node: RemoveIpc(node.plan.image_to_run, node.host_ipc),
    Memlock: lambda node: Memlock(node.plan),
    MemoryLimit: lambda node: MemoryLimit(
        node.uses_gpu,
        MemoryLimitFacts(
            node.plan.container.memory_limit_bytes, node.settings.memory.floor_mib << 20, node.need.headroom_bytes
        ),
    ),
    PageCache: lambda node: PageCache(node.need),
    FragmentedMemory: lambda node: FragmentedMemory(round(node.settings.memory.contiguous_gib * GIB), node.uses_gpu),
    UnifiedMemory: lambda node: UnifiedMemory(
        node.need, node.settings.memory.settle_seconds, node.uses_gpu, node.earlier
    ),
    OtherTenants: lambda node: OtherTenants(node.need, node.uses_gpu),
    UnaccountedMemory: lambda node: UnaccountedMemory(node.uses_gpu),
    SwapOff: lambda node: SwapOff(node.uses_gpu),
    FabricAddress: lambda node: FabricAddress(
        node.plan.node.address, node.plan.node.cluster_size, node.settings.fabric.interface
    ),
    FabricLink: lambda node: FabricLink(
        node.plan.node.interface, node.peers, node.settings.cluster.report_port, node.settings.fabric.mtu, node.uses_gpu
    ),
    Rdma: lambda node: Rdma.from_plan(node.plan, pinned=bool(node.settings.fabric.hcas)),
    GidIndex: lambda node: GidIndex(dict(node.plan.env), node.plan.node.address, why_no_rdma(node.plan)),
    Listeners: lambda node: Listeners(node.plan),
    PeerClocks: lambda node: PeerClocks(node.plan.node.cluster_size),
}
IDS = tuple(check.id for check in CHECKS)
RETIRED_IDS = ("resolver",)
"""Of checks of earlier versions: a configuration that names one is still good."""


def build_checks(node: CheckInputs, earlier: MemorySample | None = None) -> tuple[AnyCheck, ...]:
    """`earlier` is the first look at the memory, where there was one."""
    return tuple(build(replace(node, earlier=earlier)) for build in CHECKS.values())


def build_unplanned(settings: Settings) -> dict[str, AnyCheck | None]:
    """For a node without a plan, by id: the checks that need none, and None for the others."""

    def build(make: Callable[[CheckInputs], AnyCheck]) -> AnyCheck | None:
        try:
            return make(CheckInputs(None, settings))
        except PlanNeededError:
            return None

    return {check.id: build(make) for check, make in CHECKS.items()}
