"""Memory that no process and no counter of the kernel accounts for: the GPU's driver holds it."""

from msgspec import Struct
from msgspec.structs import replace

from sparkd.agent.preflight.check import Check, Level, Verdict, ok, skipped, warn
from sparkd.agent.preflight.gpu_users import GpuUser, find_gpu_users
from sparkd.base.host import Host, meminfo
from sparkd.base.host.gpu import NO_GPU
from sparkd.base.lib.text import GIB, size

UNEXPLAINED_BYTES, UNEXPLAINED_SHARE = 4 * GIB, 0.04
"""Unexplained memory up to the larger of both is the driver's own, or network buffers: an idle DGX Spark has 4.8 GiB in
use in all."""


class UnaccountedFacts(Struct, frozen=True):
    shares_memory: bool
    """Whether there is a GPU that shares this machine's memory."""
    total_bytes: int = 0
    unexplained_bytes: int = 0
    """Memory in use that no counter of the kernel explains, as `meminfo.read_unexplained_bytes`."""
    holders: tuple[GpuUser, ...] | None = ()
    """Users of the GPU; empty where there are none, or were not searched; None where unknown."""
    gpu_error: str = ""


class UnaccountedMemory(Check[UnaccountedFacts], frozen=True):
    uses_gpu: bool = True
    id = "memory-held"
    levels = (Level.WARN,)

    def probe(self, host: Host) -> UnaccountedFacts:
        gpu = host.gpu() if self.uses_gpu else NO_GPU
        if not gpu.names or gpu.total_bytes is not None:
            return UnaccountedFacts(shares_memory=False, gpu_error=gpu.error)
        memory = host.meminfo()
        facts = UnaccountedFacts(True, memory.total_bytes, meminfo.read_unexplained_bytes(host.files, memory))
        # To find the users of the devices all processes are scanned: only where it matters.
        return facts if _is_little(facts) else replace(facts, holders=find_gpu_users(host, gpu))

    def judge(self, facts: UnaccountedFacts) -> Verdict:
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


def _is_little(facts: UnaccountedFacts, reported_bytes: int = 0) -> bool:
    """Whether what is unexplained, beyond what the driver reports, is no more than usual."""
    return facts.unexplained_bytes - reported_bytes <= max(UNEXPLAINED_BYTES, facts.total_bytes * UNEXPLAINED_SHARE)
