"""Limits of memory: the size of /dev/shm, and by the plan alone what the engine may lock, and what bounds it."""

from msgspec import Struct

from sparkd.agent.preflight.check import Check, Level, Verdict, block, combine_verdicts, ok, warn
from sparkd.agent.preflight.checks.rdma import reaches_verbs, why_no_rdma
from sparkd.base.config import Settings
from sparkd.base.host import Host, disks
from sparkd.base.lib.text import GIB, MIB, size
from sparkd.base.plan.inputs import MemoryNeed
from sparkd.base.plan.model import LaunchPlan

QUEUE_BYTES, RANK_BYTES = 160 * MIB, 24 * MIB
"""Shared memory of vLLM 0.32: the queue to the workers, and the one back from each worker of this node (167,772,180 and
25,165,836 B)."""


class ShmSizeFacts(Struct, frozen=True):
    total_bytes: int
    free_bytes: int
    set_by: str


class ShmSize(Check[ShmSizeFacts], frozen=True):
    plan: LaunchPlan
    host_ipc: bool
    id = "shm-size"
    levels = (Level.WARN, Level.BLOCK, Level.UNKNOWN)

    def probe(self, host: Host) -> ShmSizeFacts:
        own_bytes = self.plan.container.shm_size_bytes
        if own_bytes is not None and not self.host_ipc:
            return ShmSizeFacts(own_bytes, own_bytes, "the container's own /dev/shm")
        memory_bytes = host.meminfo().total_bytes
        mount = disks.find_mount(host.files, "/dev/shm")  # noqa: S108 - read only
        total_bytes = memory_bytes // 2 if mount is None else mount.tmpfs_size_bytes(memory_bytes)
        return ShmSizeFacts(total_bytes, max(0, total_bytes - host.shm_used_bytes()), "the machine's /dev/shm")

    def judge(self, facts: ShmSizeFacts) -> Verdict:
        needed_bytes = QUEUE_BYTES + RANK_BYTES
        is_cluster = self.plan.node.cluster_size > 1
        reason = f"{size(facts.free_bytes)} of {size(facts.total_bytes)} free ({facts.set_by})"
        hint = "take container.shm_bytes out of the recipe, or set at least 1073741824"
        if self.host_ipc:
            hint = "sudo mount -o remount,size=50% /dev/shm, and look at /etc/fstab"
        if facts.free_bytes >= (GIB if is_cluster else needed_bytes):
            return ok(reason)
        if facts.free_bytes >= needed_bytes:
            return warn(f"{reason}: NCCL keeps buffers there too, 1 GiB is usual", hint)
        reason = f"{reason}, vLLM's queues need {size(needed_bytes)}"
        if facts.total_bytes >= needed_bytes:
            return warn(reason, "ls -lS /dev/shm")
        return (block if is_cluster and self.plan.node.is_head else warn)(reason, hint)  # a worker makes no queues


class MemlockFacts(Struct, frozen=True, rename={"why_irrelevant": "needless"}):  # its key in recorded evidence
    why_irrelevant: str
    """Why the limit does not matter to this plan; empty where it does."""
    limit_bytes: int | None = None
    """The limit of a process in the container, -1 unlimited; None where the recipe leaves it to docker."""
    set_by: str = ""


class Memlock(Check[MemlockFacts], frozen=True):
    plan: LaunchPlan
    id = "memlock"
    levels = (Level.WARN,)

    def probe(self, host: Host) -> MemlockFacts:  # noqa: ARG002  # nothing of the machine matters
        if reason := _explain_irrelevance(self.plan):
            return MemlockFacts(reason)
        limit = self.plan.container.limits.get("memlock")
        if limit is None:
            return MemlockFacts("", None, "docker's default, by null in the recipe")
        by_recipe = "memlock" in self.plan.container.ulimits
        return MemlockFacts("", limit.soft, "container.ulimits of the recipe" if by_recipe else "set by sparkd")

    def judge(self, facts: MemlockFacts) -> Verdict:
        if facts.why_irrelevant:
            return ok(f"no matter: {facts.why_irrelevant}")
        if facts.limit_bytes is not None and not 0 <= facts.limit_bytes < 16 * GIB:
            lockable = "unlimited" if facts.limit_bytes < 0 else size(facts.limit_bytes)
            return ok(f"{lockable} ({facts.set_by})")
        lockable = "8 MiB as a rule" if facts.limit_bytes is None else size(facts.limit_bytes)
        reason = f"the engine may lock {lockable} ({facts.set_by}): RDMA locks all that it sends from"
        return warn(reason, "take container.ulimits.memlock out of the recipe")


def _explain_irrelevance(plan: LaunchPlan) -> str:
    if plan.node.cluster_size > 1 and plan.container.gpus == "all" and plan.container.privileged:
        return "the container is privileged"  # CAP_IPC_LOCK: no limit holds
    return why_no_rdma(plan) or ("" if reaches_verbs(plan.container) else "the container has no RDMA device")


class MemoryLimitFacts(Struct, frozen=True):
    container_limit_bytes: int | None
    floor_bytes: int
    headroom_bytes: int


class MemoryLimit(Check[MemoryLimitFacts], frozen=True):
    plan: LaunchPlan
    settings: Settings
    need: MemoryNeed
    id = "memory-limit"
    levels = (Level.WARN,)

    def probe(self, host: Host) -> MemoryLimitFacts:  # noqa: ARG002  # nothing of the machine matters
        limit, floor = self.plan.container.memory_limit_bytes, self.settings.memory.floor_mib << 20
        return MemoryLimitFacts(limit, floor, self.need.headroom_bytes)

    def judge(self, facts: MemoryLimitFacts) -> Verdict:
        if self.plan.container.gpus != "all":
            return ok("the plan uses no GPU")
        problems = []
        if facts.container_limit_bytes is not None:
            limit = size(facts.container_limit_bytes)
            reason = f"container.memory_limit_bytes is {limit}, and does not bound what the GPU takes"
            hint = "bound the engine by gpu_memory_utilization, and take the limit out of the recipe"
            problems.append(warn(reason, hint))
        if facts.floor_bytes > facts.headroom_bytes:
            kill = f"the memory guard kills the engine below {size(facts.floor_bytes)} available"
            admission = f"preflight admits it with {size(facts.headroom_bytes)} to spare"
            problems.append(warn(f"{kill}, and {admission}", "lower memory.floor_mib, or raise memory.headroom_gib"))
        good = f"the memory guard ends the engine below {facts.floor_bytes // MIB} MiB available"
        off = "the memory guard is off (memory.floor_mib = 0)"
        return combine_verdicts(problems, good if facts.floor_bytes else off)
