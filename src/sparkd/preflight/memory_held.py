"""Memory that nobody seems to have: on GB10, what the driver keeps of an engine that is gone."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from msgspec import Struct

from sparkd.host import meminfo
from sparkd.host.gpu import NO_GPU
from sparkd.preflight.check import About, Check, Level, Verdict
from sparkd.preflight.memory import DRIVER_DAEMONS
from sparkd.preflight.sizes import GIB, size

if TYPE_CHECKING:
    from sparkd.host import Host
    from sparkd.host.gpu import GpuFacts

LEAST_BYTES = 4 * GIB
LEAST_SHARE = 0.04
"""Below these it is the driver's own, network buffers and the like: an idle DGX Spark has 4.8 GiB in use in all."""


class Holder(Struct, frozen=True):
    """A process that the driver lists, or that has its devices open."""

    pid: int
    comm: str
    bytes: int | None
    """None where the driver does not say."""


class HeldFacts(Struct, frozen=True):
    shares_memory: bool
    """Whether a GPU without memory of its own is there."""
    total_bytes: int = 0
    unexplained_bytes: int = 0
    """In no counter of the kernel, nor in the cache of ZFS, nor taken from the contiguous area."""
    holders: tuple[Holder, ...] | None = ()
    """None where that could not be told."""
    gpu_error: str = ""


class MemoryHeld(Check[HeldFacts], frozen=True):
    """No memory that is in use and that nobody uses. Whether enough is left is unified-memory's to judge."""

    uses_gpu: bool = True
    id: ClassVar[str] = "memory-held"
    about: ClassVar[About] = About(
        levels=(Level.WARN,),
        reads="/proc/meminfo; the cache of ZFS; NVML: processes and their memory; who has /dev/nvidia* open",
        source='vLLM pull request 45179 (a comment) and eugr/spark-vllm-docker issue 257, "unless-stopped": each '
        "failed start leaves memory with the driver",
        page="""\
What the GPU of a DGX Spark uses is ordinary memory that the kernel counts nowhere: neither as a process's, nor as
cache. When an engine dies, the driver may keep it. Each failed start can leave more of it behind, until a launch no
longer fits.

This check adds up all that the kernel's counters explain: free memory, page cache, the memory of processes, shared
memory, the kernel's own, huge pages, compressed swap, balloons of virtual machines, the contiguous area, the cache of
ZFS. The rest belongs to the driver. From that it takes what the driver says its processes use.

  ok       the rest is at most 4 GiB or 4 % of the memory, or processes use the GPU of which the driver does not say how
           much they have, or there is no GPU that shares the machine's memory.
  warn     more than that is in use, and no process is told to have it. A reboot gives it back; unloading nvidia_uvm
           was seen not to.

It never blocks: where too little is left for the plan, unified-memory does. It comes early where the plan still fits,
so that the reboot can be chosen.""",
    )

    def probe(self, host: Host) -> HeldFacts:
        gpu = host.gpu() if self.uses_gpu else NO_GPU
        if not gpu.names or gpu.total_bytes is not None:
            return HeldFacts(shares_memory=False, gpu_error=gpu.error)
        info = host.meminfo()
        elsewhere = info.cma_used_bytes + meminfo.zfs_cache_bytes(host.files)
        facts = HeldFacts(True, info.total_bytes, max(0, info.unaccounted_bytes - elsewhere))
        # Who has the devices open takes a look at all processes: only where it matters.
        return facts if _little(facts) else HeldFacts(True, facts.total_bytes, facts.unexplained_bytes, _who(host, gpu))

    def judge(self, facts: HeldFacts) -> Verdict:
        if facts.gpu_error:
            return Verdict(Level.OK, f"not looked at: the GPU's driver can't be asked ({facts.gpu_error})")
        if not facts.shares_memory:
            return Verdict(Level.OK, "no GPU of the plan shares this machine's memory")
        held = f"{size(facts.unexplained_bytes)} are held beside processes and caches"
        if _little(facts):
            return Verdict(Level.OK, held)
        if facts.holders is None:
            return Verdict(Level.WARN, f"{held}, and who uses the GPU can't be told", "look at: nvidia-smi")
        users = ", ".join(f"pid {one.pid} ({one.comm})" for one in facts.holders)
        if any(one.bytes is None for one in facts.holders):
            return Verdict(Level.OK, f"{held}; the GPU is used by {users}, the driver does not say how much")
        told = sum(one.bytes or 0 for one in facts.holders)
        if told and _little(facts, told):
            return Verdict(Level.OK, f"{held}, {size(told)} of it by {users}")
        rest = size(max(0, facts.unexplained_bytes - told))
        but = f", but {users} with {size(told)}" if users else ""
        return Verdict(
            Level.WARN,
            f"the GPU's driver holds {rest} that no process is told to have{but}",
            "if it stays, a reboot gives it back: systemctl reboot",
        )


def _little(facts: HeldFacts, told_bytes: int = 0) -> bool:
    return facts.unexplained_bytes - told_bytes <= max(LEAST_BYTES, facts.total_bytes * LEAST_SHARE)


def _who(host: Host, gpu: GpuFacts) -> tuple[Holder, ...] | None:
    if gpu.processes is None:
        return None
    table = host.processes()
    opened = host.gpu_users(table)
    told = {one.pid: one.used_bytes for one in gpu.processes}
    found = []
    for pid in sorted({*told, *(file.pid for file in opened.found)}):
        process = table.get(pid)
        comm = process.comm if process else "?"
        if comm not in DRIVER_DAEMONS:
            found.append(Holder(pid, comm, told.get(pid)))
    return None if opened.unreadable_pids and not found else tuple(found)
