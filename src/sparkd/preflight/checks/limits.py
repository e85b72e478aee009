"""How much memory the engine may lock: RDMA locks all that it sends from."""

from __future__ import annotations

from contextlib import suppress

from msgspec import Struct

from sparkd.host import Host, docker_config
from sparkd.host.processes import GONE, locked_memory_limit
from sparkd.lib.text import GIB, MIB, size
from sparkd.plan.model import LaunchPlan
from sparkd.preflight.check import Check, Level, Verdict, ok, verdict, warn
from sparkd.preflight.checks.rdma import reaches_verbs, why_no_rdma

ENOUGH_BYTES = 16 * GIB


class MemlockFacts(Struct, frozen=True):
    needless: str
    """Why the limit does not matter to this plan; empty where it does."""
    limit_bytes: int | None = None
    """Of a process in the container, -1 unlimited; None where unset."""
    set_by: str = ""


class Memlock(Check[MemlockFacts], frozen=True):
    plan: LaunchPlan
    id = "memlock"
    levels = (Level.WARN, Level.UNKNOWN)
    reads = "the plan; /etc/docker/daemon.json and the arguments of dockerd; /proc/PID/limits of containerd"
    source = """ "DeepSeek v4 Flash (Aiden Recipe from Reddit) - 1M token session operational", NVIDIA developer forum:
    "ibv_reg_mr_iova2 failed with error Cannot allocate memory" """
    page = """\
NCCL registers each buffer that it sends over RDMA, and registered memory is locked memory. Under systemd's and docker's
defaults a process may lock 8 MiB; the engine then ends while its ranks meet, with

  Call to ibv_reg_mr_iova2 failed with error Cannot allocate memory

What counts is the limit in the container: `container.ulimits.memlock` of the recipe, else default-ulimits of
/etc/docker/daemon.json (or --default-ulimit of dockerd), else containerd's own limit. A privileged container of root's
has no limit. Without RDMA (see rdma) the limit does not matter.

  warn     less than 16 GiB. Put into the recipe: container: {ulimits: {memlock: -1}}
  unknown  /etc/docker/daemon.json decides, and can't be read or is not JSON."""

    def probe(self, host: Host) -> MemlockFacts:
        if needless := _needless(self.plan):
            return MemlockFacts(needless)
        if limit := self.plan.container.limits.get("memlock"):
            return MemlockFacts("", limit.soft, "container.ulimits of the recipe")
        if (default := docker_config.read_defaults(host).memlock_bytes) is not None:
            return MemlockFacts("", default, "docker's default-ulimits")
        for process in host.processes():
            if process.comm == "containerd":
                with suppress(*GONE):
                    return MemlockFacts("", locked_memory_limit(host.files, process.pid), "containerd's own limit")
        return MemlockFacts("", None, "docker's default")

    def judge(self, facts: MemlockFacts) -> Verdict:
        if facts.needless:
            return ok(f"no matter: {facts.needless}")
        if facts.limit_bytes is not None and not 0 <= facts.limit_bytes < ENOUGH_BYTES:
            lockable = "unlimited" if facts.limit_bytes < 0 else size(facts.limit_bytes)
            return ok(f"{lockable} ({facts.set_by})")
        found = "8 MiB as a rule" if facts.limit_bytes is None else size(facts.limit_bytes)
        reason = f"the engine may lock {found} ({facts.set_by}): RDMA locks all that it sends from"
        return warn(reason, "set container.ulimits: {memlock: -1} in the recipe")


def _needless(plan: LaunchPlan) -> str:
    if plan.node.cluster_size > 1 and plan.container.gpus == "all" and plan.container.privileged:
        return "the container is privileged"
    return why_no_rdma(plan) or ("" if reaches_verbs(plan.container) else "the container has no RDMA device")


class MemoryLimitFacts(Struct, frozen=True):
    container_limit_bytes: int | None
    floor_bytes: int
    headroom_bytes: int


class MemoryLimit(Check[MemoryLimitFacts], frozen=True):
    uses_gpu: bool
    limits: MemoryLimitFacts
    id = "memory-limit"
    levels = (Level.WARN,)
    reads = "the plan and the settings alone"
    source = """Blackwellboy/minefield issue 57, "MemoryMax is blind to CUDA allocations", and issue 134, "earlyoom at 2
    GiB kills a valid configuration" """
    page = """\
On GB10 the GPU takes its memory from the machine's own, and no control group counts it: a memory limit on the container
bounds what the engine's processes allocate on the CPU, and nothing that CUDA takes. Where all memory is gone, the
machine freezes until its plug is pulled. sparkd's memory guard prevents that: it watches MemAvailable, and kills the
engine when less than memory.floor_mib is left (0: the guard is off).

  warn     the recipe sets container.memory_limit_bytes, and the plan uses the GPU. It can end the engine while the
           machine has memory left (page cache of the model's files counts in it), and does not keep the machine from
           freezing. Remove it, and bound the engine by gpu_memory_utilization.
  warn     memory.floor_mib is more than memory.headroom_gib: the guard would kill an engine that takes just what
           preflight admits. Lower the one or raise the other."""

    def probe(self, host: Host) -> MemoryLimitFacts:  # noqa: ARG002  # nothing of the machine matters
        return self.limits

    def judge(self, facts: MemoryLimitFacts) -> Verdict:
        if not self.uses_gpu:
            return ok("the plan uses no GPU")
        problems = []
        if facts.container_limit_bytes is not None:
            reason = f"container.memory_limit_bytes is {size(facts.container_limit_bytes)}, and does not bound what "
            hint = "bound the engine by gpu_memory_utilization, and take the limit out of the recipe"
            problems.append(warn(f"{reason}the GPU takes", hint))
        if facts.floor_bytes > facts.headroom_bytes:
            reason = f"the memory guard kills the engine below {size(facts.floor_bytes)} available, and preflight "
            reason += f"admits it with {size(facts.headroom_bytes)} to spare"
            problems.append(warn(reason, "lower memory.floor_mib, or raise memory.headroom_gib"))
        guarded = f"the memory guard ends the engine below {facts.floor_bytes // MIB} MiB available"
        return verdict(problems, guarded if facts.floor_bytes else "the memory guard is off (memory.floor_mib = 0)")
