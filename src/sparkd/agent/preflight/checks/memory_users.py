"""Other large users of the memory, by name: a unit, a container, a process."""

import shlex

from msgspec import Struct

from sparkd.agent.preflight.check import Check, Level, Verdict, ok, warn
from sparkd.base.host import Host
from sparkd.base.host.consumers import Consumer, read_consumers
from sparkd.base.host.docker import AWAY, DockerFacts
from sparkd.base.host.gpu import NO_GPU, GpuFacts
from sparkd.base.lib.text import GIB, size
from sparkd.base.plan.inputs import MemoryNeed

LEAST_BYTES = GIB
"""Smaller users are neither named nor counted."""
SHELLS = ("session-", "vte-spawn-", "tmux-spawn-")
"""Scopes of a login, and of a shell in a terminal of GNOME or tmux. To stop one ends the shell, too."""


class HeldMemory(Struct, frozen=True):
    """Memory that one user holds."""

    name: str
    bytes: int
    stop: str
    """The command that stops it, or that lists its processes; of a desktop, what to do."""


class TenantFacts(Struct, frozen=True):
    total_bytes: int
    available_bytes: int
    gpu_total_bytes: int | None
    held: tuple[HeldMemory, ...]
    """The largest holders, at most five, the largest first."""
    held_bytes: int
    """Memory of all holders of more than LEAST_BYTES."""
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
        case "user-unit" if consumer.name.startswith(("org.gnome.Shell@", "plasma-kwin_")):
            stop = f"log out of the desktop of {consumer.user}"  # as to stop it would
        case "user-unit" if not consumer.name.startswith(SHELLS):
            stop = shlex.join(("sudo", "systemctl", "--user", "-M", f"{user}@", "stop", consumer.name))
        case "unit" if not (consumer.name.startswith(SHELLS) and consumer.name.endswith(".scope")):
            label = consumer.name if consumer.name.endswith(".service") else label
            stop = f"sudo systemctl stop {shlex.quote(consumer.name)}"
        case "small":
            label = f"{consumer.processes} {label}"
            stop = f"ps -u {shlex.quote(user)}"
        case _:
            rest = f"; it is the largest of {consumer.processes} processes" if consumer.processes > 1 else ""
            stop = f"sudo kill {consumer.pid}{rest}"
    return HeldMemory(label, consumer.bytes, stop)
