"""Every check, in the order in which they run. Who needs a fix or a level alone imports none of this."""

from __future__ import annotations

from sparkd.preflight.compile_cache import CompileCache
from sparkd.preflight.containers import StaleContainer
from sparkd.preflight.disk import DiskRoom
from sparkd.preflight.docker_engine import Docker
from sparkd.preflight.fabric_address import FabricAddress
from sparkd.preflight.fabric_link import FabricLink
from sparkd.preflight.foreign_units import ForeignUnits
from sparkd.preflight.gid import GidIndex
from sparkd.preflight.gpu import Gpu
from sparkd.preflight.image import EngineImage
from sparkd.preflight.kernel import Kernel
from sparkd.preflight.kernel_log import KernelLog
from sparkd.preflight.kernel_settings import KernelSettings
from sparkd.preflight.last_boot import LastBoot
from sparkd.preflight.listeners import Listeners
from sparkd.preflight.memlock import Memlock
from sparkd.preflight.memory import UnifiedMemory
from sparkd.preflight.memory_held import MemoryHeld
from sparkd.preflight.memory_limit import MemoryLimit
from sparkd.preflight.page_cache import PageCache
from sparkd.preflight.peer_clock import PeerClocks
from sparkd.preflight.plan_lint import PlanLint
from sparkd.preflight.ports import Ports
from sparkd.preflight.rdma import Rdma
from sparkd.preflight.remove_ipc import RemoveIpc
from sparkd.preflight.resolver import Resolver
from sparkd.preflight.scripts import ScriptPaths
from sparkd.preflight.shm import SharedMemory
from sparkd.preflight.shm_size import ShmSize
from sparkd.preflight.strays import StrayWorkers
from sparkd.preflight.swap import SwapOff
from sparkd.preflight.tenants import OtherTenants
from sparkd.preflight.weights import ModelWeights

CHECKS = (
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
    UnifiedMemory,
    OtherTenants,
    MemoryHeld,
    SwapOff,
    FabricAddress,
    FabricLink,
    Rdma,
    GidIndex,
    Resolver,
    Listeners,
    PeerClocks,
)
IDS = tuple(check.id for check in CHECKS)
