"""Other large users of the memory, by name: a unit, a container, a process."""

import shlex

from msgspec import Struct
from msgspec.structs import replace

from sparkd.agent.preflight.check import Check, Level, Verdict, ok, skipped, warn
from sparkd.agent.preflight.gpu_users import GpuUser, find_gpu_users
from sparkd.base.host import Host, meminfo
from sparkd.base.host.consumers import Consumer, read_consumers
from sparkd.base.host.docker import AWAY, DockerFacts
from sparkd.base.host.gpu import NO_GPU, GpuFacts
from sparkd.base.lib.text import GIB, size
from sparkd.base.plan.inputs import MemoryNeed

LEAST_BYTES = GIB
"""Smaller users are not named."""


class HeldMemory(Struct, frozen=True):
    """Memory that one user holds."""

    name: str
    bytes: int
    stop: str
    """The command that stops it, or that lists its processes."""


class TenantFacts(Struct, frozen=True):
    total_bytes: int
    available_bytes: int
    gpu_total_bytes: int | None
    held: tuple[HeldMemory, ...]
    """The largest holders, at most five, the largest first."""
    held_bytes: int
    """Memory of all holders of more than 1 GiB."""
    others: int
    """How many of these are not in `held`."""


class OtherTenants(Check[TenantFacts], frozen=True):
    need: MemoryNeed
    uses_gpu: bool = True
    id = "other-tenants"
    levels = (Level.WARN,)

    def probe(self, host: Host) -> TenantFacts:
        memory = host.meminfo()
        gpu = host.gpu() if self.uses_gpu and host.gpu_present() else NO_GPU
        consumers = [consumer for consumer in find_consumers(host, gpu) if consumer.bytes > LEAST_BYTES]
        shown = consumers[:5]
        has_containers = any(consumer.kind == "container" for consumer in shown)
        docker = host.docker() if has_containers else AWAY
        return TenantFacts(
            total_bytes=memory.total_bytes,
            available_bytes=memory.available_bytes,
            gpu_total_bytes=gpu.total_bytes,
            held=tuple(_describe_consumer(consumer, docker) for consumer in shown),
            held_bytes=sum(consumer.bytes for consumer in consumers),
            others=len(consumers) - len(shown),
        )

    def judge(self, facts: TenantFacts) -> Verdict:
        if not facts.held:
            return ok(f"nobody holds more than {size(LEAST_BYTES)}")
        names = ", ".join(f"{held.name} {size(held.bytes)}" for held in facts.held)
        rest = f", and {facts.others} more" if facts.others else ""
        needed_bytes = self.need.all_bytes(facts.total_bytes, facts.gpu_total_bytes)
        need = f", {size(needed_bytes)} needed" if self.need.is_known else ""
        available = f"{size(facts.available_bytes)} available{need}"
        if facts.available_bytes >= needed_bytes or not self.need.is_known:
            return ok(f"{names}{rest}; {available}")
        reason = f"others hold {size(facts.held_bytes)} of what the plan needs: {names}{rest}; {available}"
        return warn(reason, f"stop what you can spare: {facts.held[0].stop}")


def find_consumers(host: Host, gpu: GpuFacts) -> tuple[Consumer, ...]:
    """All users of memory, largest first. Raises OSError, ValueError."""
    shares_memory = gpu.total_bytes is None
    driver_bytes = {process.pid: process.used_bytes or 0 for process in gpu.processes or ()} if shares_memory else {}
    return read_consumers(host.files, host.processes(), driver_bytes)


def _describe_consumer(consumer: Consumer, docker: DockerFacts) -> HeldMemory:
    user, label = consumer.user.removeprefix("uid "), f"{consumer.name} of {consumer.user}"
    match consumer.kind:
        case "container":
            container = docker.container(consumer.name)
            name = container.name if container else consumer.name[:12]
            is_dockers = container is not None or not docker.known  # others are podman's, or Kubernetes'
            label = f"container {name}"
            stop = f"sudo docker stop {shlex.quote(name)}" if is_dockers else f"sudo kill {consumer.pid}"
        case "user-unit":
            stop = shlex.join(("sudo", "systemctl", "--user", "-M", f"{user}@", "stop", consumer.name))
        case "unit":
            label = consumer.name if consumer.name.endswith(".service") else label
            stop = f"sudo systemctl stop {shlex.quote(consumer.name)}"
        case "small":
            label = f"{consumer.processes} {label}"
            stop = f"ps -u {shlex.quote(user)}"
        case _:
            stop = f"sudo kill {consumer.pid}"
    return HeldMemory(label, consumer.bytes, stop)


UNEXPLAINED_BYTES = 4 * GIB
UNEXPLAINED_SHARE = 0.04
"""Unexplained memory up to the larger of both is the driver's own, or network buffers: an idle DGX Spark has 4.8 GiB in
use in all."""


class HeldFacts(Struct, frozen=True):
    shares_memory: bool
    """Whether there is a GPU that shares this machine's memory."""
    total_bytes: int = 0
    unexplained_bytes: int = 0
    """Memory in use that no counter of the kernel explains, as `meminfo.read_unexplained_bytes`."""
    holders: tuple[GpuUser, ...] | None = ()
    """Users of the GPU; empty where there are none, or were not searched; None where unknown."""
    gpu_error: str = ""


class UnaccountedMemory(Check[HeldFacts], frozen=True):
    uses_gpu: bool = True
    id = "memory-held"
    levels = (Level.WARN,)

    def probe(self, host: Host) -> HeldFacts:
        gpu = host.gpu() if self.uses_gpu else NO_GPU
        if not gpu.names or gpu.total_bytes is not None:
            return HeldFacts(shares_memory=False, gpu_error=gpu.error)
        memory = host.meminfo()
        facts = HeldFacts(True, memory.total_bytes, meminfo.read_unexplained_bytes(host.files, memory))
        # To find the users of the devices all processes are scanned: only where it matters.
        return facts if _is_little(facts) else replace(facts, holders=find_gpu_users(host, gpu))

    def judge(self, facts: HeldFacts) -> Verdict:
        if facts.gpu_error:
            return skipped(f"not inspected: the GPU's driver can't be queried ({facts.gpu_error})")
        if not facts.shares_memory:
            return ok("no GPU of the plan shares this machine's memory")
        amount = f"{size(facts.unexplained_bytes)} are held beside processes and caches"
        if _is_little(facts):
            return ok(amount)
        if facts.holders is None:
            return warn(f"{amount}, and the GPU's users are unknown", "look at: nvidia-smi")
        living = [holder for holder in facts.holders if not holder.gone]
        users = ", ".join(holder.label for holder in living)
        if any(holder.bytes is None for holder in living):
            return ok(f"{amount}; the GPU is used by {users}, the driver does not say how much")
        reported_bytes = sum(holder.bytes or 0 for holder in living)
        reported_users = ", ".join(holder.label for holder in living if holder.bytes)
        if reported_bytes and _is_little(facts, reported_bytes):
            return ok(f"{amount}, {size(reported_bytes)} of it by {reported_users}")
        rest = size(max(0, facts.unexplained_bytes - reported_bytes))
        exception = f", but {reported_users} with {size(reported_bytes)}" if reported_users else ""
        reason = f"the GPU's driver holds {rest} that belongs to no process{exception}"
        # Managed memory that the CPU touched is in no list of the driver's, and goes when its process ends.
        condition = f"it stays once {users} have ended" if users else "it stays"
        return warn(reason, f"if {condition}, a reboot gives it back: sudo systemctl reboot")


def _is_little(facts: HeldFacts, reported_bytes: int = 0) -> bool:
    """Whether what is unexplained, beyond what the driver reports, is no more than usual."""
    return facts.unexplained_bytes - reported_bytes <= max(UNEXPLAINED_BYTES, facts.total_bytes * UNEXPLAINED_SHARE)
