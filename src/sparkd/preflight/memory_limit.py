"""What bounds the engine's memory: neither a limit of its container nor a floor that the plan itself passes."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from msgspec import Struct

from sparkd.preflight.check import About, Check, Level, Verdict
from sparkd.preflight.problems import Problem, verdict
from sparkd.preflight.sizes import MIB, size

if TYPE_CHECKING:
    from sparkd.host import Host


class MemoryLimitFacts(Struct, frozen=True):
    container_limit_bytes: int | None
    floor_bytes: int
    headroom_bytes: int


class MemoryLimit(Check[MemoryLimitFacts], frozen=True):
    """No limit that does not hold, and a floor of the memory guard that the plan leaves room for."""

    uses_gpu: bool
    container_limit_bytes: int | None
    floor_bytes: int
    headroom_bytes: int
    id: ClassVar[str] = "memory-limit"
    about: ClassVar[About] = About(
        levels=(Level.WARN,),
        reads="the plan and the settings alone",
        source='Blackwellboy/minefield issue 57, "MemoryMax is blind to CUDA allocations", and issue 134, "earlyoom at '
        '2 GiB kills a valid configuration"',
        page="""\
On GB10 the GPU takes its memory from the machine's own, and no control group counts it: a memory limit on the
container holds back what the engine's processes allocate on the CPU, and nothing of what CUDA takes. Where all memory
is gone, the machine freezes until its plug is pulled. What stands before that is sparkd's memory guard: it watches
MemAvailable, and kills the engine when less than memory.floor_mib is left.

  warn     the recipe sets container.memory_limit_bytes, and the plan uses the GPU. It can end the engine while the
           machine has memory left (page cache of the model's files counts in it), and does not keep the machine from
           freezing. Take it out, and bound the engine by gpu_memory_utilization.
  warn     memory.floor_mib is more than memory.headroom_gib: an engine that takes just what preflight admits would be
           killed for it. Lower the one or raise the other.

A plan that is ok has no limit that pretends to help, and a floor below what it leaves over (memory.headroom_gib). The
reason names the floor, or says that the guard is off (memory.floor_mib = 0).""",
    )

    def probe(self, host: Host) -> MemoryLimitFacts:  # noqa: ARG002  # nothing of the machine matters
        return MemoryLimitFacts(self.container_limit_bytes, self.floor_bytes, self.headroom_bytes)

    def judge(self, facts: MemoryLimitFacts) -> Verdict:
        if not self.uses_gpu:
            return Verdict(Level.OK, "the plan uses no GPU")
        problems = []
        if facts.container_limit_bytes is not None:
            problems.append(
                Problem(
                    Level.WARN,
                    f"container.memory_limit_bytes is {size(facts.container_limit_bytes)}, and does not bound what the "
                    "GPU takes",
                    "bound the engine by gpu_memory_utilization, and take the limit out of the recipe",
                )
            )
        if facts.floor_bytes > facts.headroom_bytes:
            problems.append(
                Problem(
                    Level.WARN,
                    f"the memory guard kills the engine below {size(facts.floor_bytes)} available, and preflight "
                    f"admits it with {size(facts.headroom_bytes)} to spare",
                    "lower memory.floor_mib, or raise memory.headroom_gib",
                )
            )
        return verdict(problems, _guarded(facts))


def _guarded(facts: MemoryLimitFacts) -> str:
    if not facts.floor_bytes:
        return "the memory guard is off (memory.floor_mib = 0)"
    return f"the memory guard ends the engine below {facts.floor_bytes // MIB} MiB available"
