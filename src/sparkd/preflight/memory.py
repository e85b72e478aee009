"""Unified memory: what the plan will ask of the memory that CPU and GPU share."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from msgspec import Struct

from sparkd.host.gpu import AWAITED, NO_GPU
from sparkd.preflight.check import About, Check, Level, Verdict
from sparkd.preflight.sizes import MIB, size

if TYPE_CHECKING:
    from sparkd.host import Host
    from sparkd.host.gpu import GpuFacts
    from sparkd.preflight.need import MemoryNeed

UNCHANGED_BYTES = 256 * MIB
"""Changes below this are the machine's own breathing, not memory that comes back."""
DRIVER_DAEMONS = ("nvidia-persiste",)
"""nvidia-persistenced (the kernel keeps 15 letters) has the devices open for ever and holds no memory to speak of."""


class MemorySample(Struct, frozen=True):
    """How much was available at a time, to tell later whether it has changed."""

    uptime_seconds: float
    available_bytes: int


def sample(host: Host) -> MemorySample:
    return MemorySample(host.uptime_seconds(), host.meminfo().available_bytes)


class MemoryFacts(Struct, frozen=True):
    uptime_seconds: float
    total_bytes: int
    free_bytes: int
    available_bytes: int
    process_bytes: int
    """Anonymous and shared memory: what would come back if every process ended."""
    gpus: tuple[str, ...]
    gpu_total_bytes: int | None
    gpu_error: str
    gpu_users: tuple[str, ...] | None
    """Processes that the driver lists or that have its devices open; None where that could not be told."""


class UnifiedMemory(Check[MemoryFacts], frozen=True):
    """Enough memory for the plan. vLLM on integrated GPUs gates on MemAvailable, older builds on MemFree."""

    need: MemoryNeed
    settle_seconds: float
    uses_gpu: bool = True
    earlier: MemorySample | None = None
    """The first look at the memory as it is now; None in the first examination."""
    id: ClassVar[str] = "unified-memory"
    about: ClassVar[About] = About(
        levels=(Level.WARN, Level.BLOCK, Level.UNKNOWN),
        reads="/proc/meminfo; NVML: total memory, processes; who has /dev/nvidia* open",
        source="vLLM issue 48140 and pull request 35356; a forum thread on DeepSeek-V4-Flash: the driver keeps memory",
        page="""\
CPU and GPU of a DGX Spark share one memory, so whatever holds it is missing to the engine. This check compares
MemAvailable with what the plan needs: the recipe's memory_bytes, else gpu_memory_utilization x the machine's memory,
and memory.headroom_gib beside it. Where the GPU has memory of its own, which sparkd does not judge, that share is none
of the machine's.

  block    less is available than needed. Stop other work, or lower memory_bytes or gpu_memory_utilization. Where
           ending strays or unlinking orphaned segments would free enough, preflight does so.
  warn     enough is available, but less is free: the rest is page cache. Builds of vLLM older than early 2026 count
           only free pages on integrated GPUs (vLLM pull request 35356).
  unknown  the GPU's driver does not answer.

"Reboot this node" is said only when all processes together hold less than what is missing, the driver lists no
process, nobody has /dev/nvidia* open, and nothing has changed for memory.settle_seconds. Then the driver keeps memory
of a process that is gone. On GB10 about 100 GiB were seen to stay so; unloading nvidia_uvm does not free them.""",
    )

    def probe(self, host: Host) -> MemoryFacts:
        info = host.meminfo()
        gpu = host.gpu() if self.uses_gpu else NO_GPU
        return MemoryFacts(
            uptime_seconds=host.uptime_seconds(),
            total_bytes=info.total_bytes,
            free_bytes=info.free_bytes,
            available_bytes=info.available_bytes,
            process_bytes=info.anonymous_bytes + info.shared_bytes,
            gpus=gpu.names,
            gpu_total_bytes=gpu.total_bytes,
            gpu_error=gpu.error,
            gpu_users=_gpu_users(host, gpu),
        )

    def judge(self, facts: MemoryFacts) -> Verdict:
        if facts.gpu_error:
            reason = f"the GPU's driver can't be asked: {facts.gpu_error}"
            return Verdict(Level.UNKNOWN, reason, "look at: nvidia-smi, dmesg", awaits=AWAITED)
        engine = self.need.engine_bytes(facts.total_bytes, facts.gpu_total_bytes)
        needed = engine + self.need.headroom_bytes
        parts = f"{size(engine)} and headroom" if engine else "headroom: the GPU has memory of its own"
        words = f"{size(needed)} needed ({parts})"
        if facts.available_bytes < needed:
            return self._short(facts, needed, f"{size(facts.available_bytes)} available, {words}")
        if facts.free_bytes < needed:
            reason = f"{size(facts.available_bytes)} available, but {size(facts.free_bytes)} free; {words}"
            return Verdict(Level.WARN, reason, "the rest is page cache, which older builds of vLLM do not count")
        return Verdict(Level.OK, f"{size(facts.available_bytes)} available, {words}")

    def _short(self, facts: MemoryFacts, needed: int, reason: str) -> Verdict:
        shortage = needed - facts.available_bytes
        if needed > facts.total_bytes:
            hint = f"this node has {size(facts.total_bytes)} in all: lower gpu_memory_utilization or memory_bytes"
            return Verdict(Level.BLOCK, reason, hint)
        if facts.gpu_users:
            return Verdict(
                Level.BLOCK,
                f"{reason}; the GPU is used by {', '.join(facts.gpu_users)}",
                "stop other work on the GPU",
                shortage_bytes=shortage,
            )
        driver_holds = bool(facts.gpus) and facts.gpu_users == () and facts.process_bytes < shortage
        if not driver_holds:
            return Verdict(Level.BLOCK, reason, "stop other work on this node", shortage_bytes=shortage)
        if not self._unchanged(facts):
            # Memory of an engine that has just ended comes back over some seconds.
            return Verdict(
                Level.BLOCK, reason, "waiting for memory to come back", shortage_bytes=shortage, awaits="memory"
            )
        return Verdict(
            Level.BLOCK,
            f"{reason}; no process uses the GPU, so its driver holds the memory of one that is gone",
            "reboot this node",
            shortage_bytes=shortage,
            needs_person=True,
        )

    def _unchanged(self, facts: MemoryFacts) -> bool:
        return (
            self.earlier is not None
            and facts.uptime_seconds - self.earlier.uptime_seconds >= self.settle_seconds
            and abs(facts.available_bytes - self.earlier.available_bytes) < UNCHANGED_BYTES
        )


def _gpu_users(host: Host, gpu: GpuFacts) -> tuple[str, ...] | None:
    if not gpu.names:
        return ()
    if gpu.processes is None:
        return None
    table = host.processes()
    opened = host.gpu_users(table)
    found = []
    for pid in sorted({*(one.pid for one in gpu.processes), *(file.pid for file in opened.found)}):
        process = table.get(pid)
        comm = process.comm if process else "?"
        if comm not in DRIVER_DAEMONS:
            found.append(f"pid {pid} ({comm})")
    return None if opened.unreadable_pids and not found else tuple(found)
