"""Who else holds much of the memory, by name: a unit, a container, a process."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from msgspec import Struct

from sparkd.host import tenants
from sparkd.host.gpu import NO_GPU
from sparkd.preflight.check import About, Check, Level, Verdict
from sparkd.preflight.sizes import GIB, size

if TYPE_CHECKING:
    from sparkd.host import Host
    from sparkd.host.tenants import Tenant
    from sparkd.preflight.need import MemoryNeed

LEAST_BYTES = GIB
SHOWN = 5


class Held(Struct, frozen=True):
    """One who holds more than `LEAST_BYTES`, as a person knows it."""

    name: str
    bytes: int
    stop: str
    """The command that ends it."""


class TenantFacts(Struct, frozen=True):
    total_bytes: int
    available_bytes: int
    gpu_total_bytes: int | None
    held: tuple[Held, ...]
    """Largest first, at most five."""
    held_bytes: int
    """By all who hold more than 1 GiB."""
    others: int
    """How many more there are."""


class OtherTenants(Check[TenantFacts], frozen=True):
    """Nobody else's memory is missing to the plan. What blocks is unified-memory; here stands whose it is."""

    need: MemoryNeed
    uses_gpu: bool = True
    id: ClassVar[str] = "other-tenants"
    about: ClassVar[About] = About(
        levels=(Level.WARN,),
        reads="every process's memory and control group; NVML: memory of processes; docker's names of containers",
        source="tonyd2wild/DeepSeek-v4-Flash-Vision-Exp issue 31 (co-tenants on one GB10); llamastash issue 80 (with "
        "one other tenant, 52 GiB are available)",
        page="""\
A DGX Spark is a desktop too: a browser, a notebook, ollama or a second container hold memory that the engine was
promised. unified-memory says how much is missing; this check says who has it.

Processes are taken together by the container or the systemd unit that they belong to. What counts is what their end
would give back: anonymous memory, shared memory once for all who map it, and, where the GPU shares the machine's
memory, what the driver says it holds for them. Processes with less than 16 MiB are left out. Page cache is nobody's.

  ok       nobody holds more than 1 GiB, or those who do leave the plan what it needs: they are named.
  warn     less is available than the plan needs with its headroom, and these hold more than 1 GiB each. The five
           largest are named. Stop what you can spare:

             systemctl stop UNIT, docker stop CONTAINER, or end the session

sparkd ends none of them: whether somebody's work may be lost is not for it to say. Orphaned engines are the concern of
stray-workers.""",
    )

    def probe(self, host: Host) -> TenantFacts:
        info = host.meminfo()
        gpu = host.gpu() if self.uses_gpu and host.gpu_present() else NO_GPU
        shares = gpu.total_bytes is None
        told = {one.pid: one.used_bytes or 0 for one in gpu.processes or ()} if shares else {}
        found = [one for one in tenants.read(host.files, host.processes(), told) if one.bytes > LEAST_BYTES]
        shown = found[:SHOWN]
        names = _container_names(host) if any(one.kind == "container" for one in shown) else {}
        return TenantFacts(
            total_bytes=info.total_bytes,
            available_bytes=info.available_bytes,
            gpu_total_bytes=gpu.total_bytes,
            held=tuple(_held(one, names) for one in shown),
            held_bytes=sum(one.bytes for one in found),
            others=len(found) - len(shown),
        )

    def judge(self, facts: TenantFacts) -> Verdict:
        if not facts.held:
            return Verdict(Level.OK, f"nobody holds more than {size(LEAST_BYTES)}")
        named = ", ".join(f"{one.name} {size(one.bytes)}" for one in facts.held)
        more = f", and {facts.others} more" if facts.others else ""
        needed = self.need.all_bytes(facts.total_bytes, facts.gpu_total_bytes)
        left = f"{size(facts.available_bytes)} available, {size(needed)} needed"
        if facts.available_bytes >= needed:
            return Verdict(Level.OK, f"{named}{more}; {left}")
        reason = f"others hold {size(facts.held_bytes)} of what the plan needs: {named}{more}; {left}"
        return Verdict(Level.WARN, reason, f"stop what you can spare: {facts.held[0].stop}")


def _container_names(host: Host) -> dict[str, str]:
    return {one.id: one.name for one in host.docker().containers}


def _held(one: Tenant, names: dict[str, str]) -> Held:
    if one.kind == "container":
        name = names.get(one.name) or one.name[:12]
        return Held(f"container {name}", one.bytes, f"docker stop {name}")
    if one.kind == "unit" and one.name.endswith(".service"):
        return Held(one.name, one.bytes, f"systemctl stop {one.name}")
    if one.kind == "unit":
        return Held(f"{one.name} of {one.user}", one.bytes, f"systemctl stop {one.name}")
    if one.kind == "user-unit":
        return Held(f"{one.name} of {one.user}", one.bytes, f"systemctl --user -M {one.user}@ stop {one.name}")
    return Held(one.name, one.bytes, f"kill {one.pid}")
