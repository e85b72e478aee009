"""How much memory the engine may lock: RDMA locks all that it sends from."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from msgspec import Struct

from sparkd.host import docker_defaults, limits
from sparkd.host.processes import GONE
from sparkd.preflight import nccl_hcas
from sparkd.preflight.check import About, Check, Level, Verdict
from sparkd.preflight.sizes import GIB, size

if TYPE_CHECKING:
    from sparkd.host import Host
    from sparkd.launch.plan import LaunchPlan

ENOUGH_BYTES = 16 * GIB
UNLIMITED = limits.UNLIMITED


class MemlockFacts(Struct, frozen=True):
    needless: str
    """Why the limit does not matter to this plan; empty where it does."""
    limit_bytes: int | None = None
    """Of a process in the container, -1 unlimited; None where nobody says."""
    set_by: str = ""


class Memlock(Check[MemlockFacts], frozen=True):
    """The container may lock what NCCL registers with the RDMA devices."""

    plan: LaunchPlan
    id: ClassVar[str] = "memlock"
    about: ClassVar[About] = About(
        levels=(Level.WARN, Level.UNKNOWN),
        reads="the plan; /etc/docker/daemon.json and the arguments of dockerd; /proc/PID/limits of containerd",
        source='"DeepSeek v4 Flash (Aiden Recipe from Reddit) - 1M token session operational", NVIDIA developer forum: '
        '"ibv_reg_mr_iova2 failed with error Cannot allocate memory"',
        page="""\
NCCL registers each buffer that it sends over RDMA, and registered memory is locked memory. Under systemd's and docker's
defaults a process may lock 8 MiB; the engine then ends while its ranks meet, with

  NCCL error: unhandled system error
  Call to ibv_reg_mr_iova2 failed with error Cannot allocate memory

What counts is the limit in the container: `container.ulimits.memlock` of the recipe, else default-ulimits of
/etc/docker/daemon.json (or --default-ulimit of dockerd), else what containerd itself runs with. A privileged container
of root's may lock without limit.

  ok       unlimited, or 16 GiB and more; or it does not matter: one node, no GPU, NCCL told to go by TCP
           (NCCL_IB_DISABLE=1, NCCL_NET=Socket), or no RDMA device in the container.
  warn     less. Put into the recipe:

             container:
               ulimits:
                 memlock: -1

  unknown  /etc/docker/daemon.json decides, and can't be read or is not JSON.""",
    )

    def probe(self, host: Host) -> MemlockFacts:
        if needless := _needless(self.plan):
            return MemlockFacts(needless)
        for limit in self.plan.container.ulimits:
            if limit.name == "memlock":
                return MemlockFacts("", limit.soft, "container.ulimits of the recipe")
        default = docker_defaults.read(host).memlock_bytes
        if default is not None:
            return MemlockFacts("", default, "docker's default-ulimits")
        for process in host.processes():
            if process.comm == "containerd":
                try:
                    return MemlockFacts("", limits.locked_memory(host.files, process.pid), "containerd's own limit")
                except GONE:
                    continue
        return MemlockFacts("", None, "docker's default")

    def judge(self, facts: MemlockFacts) -> Verdict:
        if facts.needless:
            return Verdict(Level.OK, f"no matter: {facts.needless}")
        if facts.limit_bytes is not None and not 0 <= facts.limit_bytes < ENOUGH_BYTES:
            lockable = "unlimited" if facts.limit_bytes < 0 else size(facts.limit_bytes)
            return Verdict(Level.OK, f"{lockable} ({facts.set_by})")
        found = "8 MiB as a rule" if facts.limit_bytes is None else size(facts.limit_bytes)
        return Verdict(
            Level.WARN,
            f"the engine may lock {found} ({facts.set_by}): RDMA locks all that it sends from",
            "set container.ulimits: {memlock: -1} in the recipe",
        )


def _needless(plan: LaunchPlan) -> str:
    spec = plan.container
    if plan.node.cluster_size == 1:
        return "one node"
    if spec.gpus != "all":
        return "the plan uses no GPU"
    if spec.privileged:
        return "the container is privileged"
    if by_tcp := nccl_hcas.by_tcp(dict(plan.env)):
        return by_tcp
    if not any(device.startswith(nccl_hcas.VERBS) for device in spec.devices):
        return "the container has no RDMA device"
    return ""
