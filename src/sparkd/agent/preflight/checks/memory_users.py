"""Other large users of the memory, by name: a unit, a container, a process."""

from __future__ import annotations

import shlex

from msgspec import Struct
from msgspec.structs import replace

from sparkd.agent.preflight.check import Check, Level, Verdict, ok, skipped, warn
from sparkd.agent.preflight.checks.memory import GpuUser, find_gpu_users
from sparkd.base.host import Host, meminfo
from sparkd.base.host.gpu import NO_GPU, GpuFacts
from sparkd.base.host.meminfo import Consumer
from sparkd.base.lib.text import GIB, size
from sparkd.base.plan.inputs import MemoryNeed

LEAST_BYTES = GIB
SHOWN = 5


class Held(Struct, frozen=True):
    name: str
    bytes: int
    stop: str


class TenantFacts(Struct, frozen=True):
    total_bytes: int
    available_bytes: int
    gpu_total_bytes: int | None
    held: tuple[Held, ...]
    """Largest first, at most five."""
    held_bytes: int
    """By all holders of more than 1 GiB."""
    others: int


class OtherTenants(Check[TenantFacts], frozen=True):
    need: MemoryNeed
    uses_gpu: bool = True
    id = "other-tenants"
    levels = (Level.WARN,)

    def probe(self, host: Host) -> TenantFacts:
        info = host.meminfo()
        gpu = host.gpu() if self.uses_gpu and host.gpu_present() else NO_GPU
        found = [one for one in find_consumers(host, gpu) if one.bytes > LEAST_BYTES]
        shown = found[:SHOWN]
        inside = any(one.kind == "container" for one in shown)
        names = {one.id: one.name for one in host.docker().containers} if inside else {}
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
            return ok(f"nobody holds more than {size(LEAST_BYTES)}")
        named = ", ".join(f"{one.name} {size(one.bytes)}" for one in facts.held)
        more = f", and {facts.others} more" if facts.others else ""
        needed = self.need.all_bytes(facts.total_bytes, facts.gpu_total_bytes)
        wanted = f", {size(needed)} needed" if self.need.is_known else ""
        left = f"{size(facts.available_bytes)} available{wanted}"
        if facts.available_bytes >= needed or not self.need.is_known:
            return ok(f"{named}{more}; {left}")
        reason = f"others hold {size(facts.held_bytes)} of what the plan needs: {named}{more}; {left}"
        return warn(reason, f"stop what you can spare: {facts.held[0].stop}")


def find_consumers(host: Host, gpu: GpuFacts) -> tuple[Consumer, ...]:
    """Largest first. Raises OSError, ValueError."""
    shares = gpu.total_bytes is None
    driver_bytes = {one.pid: one.used_bytes or 0 for one in gpu.processes or ()} if shares else {}
    return meminfo.read_consumers(host.files, host.processes(), driver_bytes)


def _held(one: Consumer, names: dict[str, str]) -> Held:
    if one.kind == "container":
        name = names.get(one.name) or one.name[:12]
        return Held(f"container {name}", one.bytes, f"docker stop {shlex.quote(name)}")
    if one.kind == "user-unit":
        stop = shlex.join(("systemctl", "--user", "-M", f"{one.user}@", "stop", one.name))
        return Held(f"{one.name} of {one.user}", one.bytes, stop)
    if one.kind == "small":
        listing = f"ps -u {shlex.quote(one.user.removeprefix('uid '))}"
        return Held(f"{one.processes} {one.name} of {one.user}", one.bytes, listing)
    if one.kind == "unit":
        whose = "" if one.name.endswith(".service") else f" of {one.user}"
        return Held(f"{one.name}{whose}", one.bytes, f"systemctl stop {shlex.quote(one.name)}")
    return Held(f"{one.name} of {one.user}", one.bytes, f"kill {one.pid}")


UNEXPLAINED_BYTES = 4 * GIB
UNEXPLAINED_SHARE = 0.04
"""Below these it is the driver's own, or network buffers: an idle DGX Spark has 4.8 GiB in use in all."""


class HeldFacts(Struct, frozen=True):
    shares_memory: bool
    """Whether a GPU without memory of its own is there."""
    total_bytes: int = 0
    unexplained_bytes: int = 0
    """In no counter of the kernel, nor in the cache of ZFS, nor taken from the contiguous area."""
    holders: tuple[GpuUser, ...] | None = ()
    gpu_error: str = ""


class UnaccountedMemory(Check[HeldFacts], frozen=True):
    uses_gpu: bool = True
    id = "memory-held"
    levels = (Level.WARN,)

    def probe(self, host: Host) -> HeldFacts:
        gpu = host.gpu() if self.uses_gpu else NO_GPU
        if not gpu.names or gpu.total_bytes is not None:
            return HeldFacts(shares_memory=False, gpu_error=gpu.error)
        info = host.meminfo()
        elsewhere = info.cma_used_bytes + meminfo.zfs_cache_bytes(host.files)
        facts = HeldFacts(True, info.total_bytes, max(0, info.unaccounted_bytes - elsewhere))
        # The users of the devices take a scan of all processes: only where it matters.
        return facts if _little(facts) else replace(facts, holders=find_gpu_users(host, gpu))

    def judge(self, facts: HeldFacts) -> Verdict:
        if facts.gpu_error:
            return skipped(f"not inspected: the GPU's driver can't be queried ({facts.gpu_error})")
        if not facts.shares_memory:
            return ok("no GPU of the plan shares this machine's memory")
        held = f"{size(facts.unexplained_bytes)} are held beside processes and caches"
        if _little(facts):
            return ok(held)
        if facts.holders is None:
            return warn(f"{held}, and the GPU's users are unknown", "look at: nvidia-smi")
        users = ", ".join(one.label for one in facts.holders)
        if any(one.bytes is None for one in facts.holders):
            return ok(f"{held}; the GPU is used by {users}, the driver does not say how much")
        reported = sum(one.bytes or 0 for one in facts.holders)
        if reported and _little(facts, reported):
            return ok(f"{held}, {size(reported)} of it by {users}")
        rest = size(max(0, facts.unexplained_bytes - reported))
        but = f", but {users} with {size(reported)}" if users else ""
        reason = f"the GPU's driver holds {rest} that belongs to no process{but}"
        return warn(reason, "if it stays, a reboot gives it back: systemctl reboot")


def _little(facts: HeldFacts, reported_bytes: int = 0) -> bool:
    return facts.unexplained_bytes - reported_bytes <= max(UNEXPLAINED_BYTES, facts.total_bytes * UNEXPLAINED_SHARE)
