"""The kernel's version, and memory that it keeps back for a kexec that never comes."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from msgspec import Struct

from sparkd.host import kernel
from sparkd.preflight import known_bad
from sparkd.preflight.check import About, Check, Level, Verdict
from sparkd.preflight.known_bad import ADD_NO_KHO, KERNELS, NO_KHO
from sparkd.preflight.problems import Problem, verdict
from sparkd.preflight.sizes import size

if TYPE_CHECKING:
    from sparkd.host import Host


class KernelFacts(Struct, frozen=True):
    release: str
    kho_off: bool
    """Whether it was booted with kho=off."""
    kept_back_bytes: int
    """CmaFree beyond CmaTotal."""


class Kernel(Check[KernelFacts], frozen=True):
    """No kernel that is known to be bad on GB10."""

    id: ClassVar[str] = "kernel"
    about: ClassVar[About] = About(
        levels=(Level.WARN,),
        reads="/proc/sys/kernel/osrelease, /proc/cmdline, /proc/meminfo",
        source="NVIDIA/NV-Kernels pull requests 590 and 591; NVIDIA forum 366026 on 6.17.0-1008-nvidia",
        page="""\
Looks the running kernel up in a list of those that users and NVIDIA report as bad on DGX Spark, and looks for memory
that kexec handover (KHO) keeps back.

  warn     6.17.0-1008-nvidia       it panics, and the GPU may be missing until a cold boot (NVIDIA forum 366026)
           7.0.0-1019-nvidia        KHO is on by default (NV-Kernels pull requests 590 and 591)
           7.0.0-31, Ubuntu's HWE   the same (MiaAI-Lab/DeepSeek-v4-Flash-DSpark-2x-DGX-Spark issue 259)
           any kernel               CmaFree is above CmaTotal in /proc/meminfo: the sign of KHO's scratch area
           none                     its version can't be read

KHO reserves about 9.3 GiB on a DGX Spark. Memory for RDMA can't be pinned there: once the model fills the rest, NCCL
ends with `ibv_reg_mr_iova2 ... Cannot allocate memory`. What helps: add kho=off to GRUB_CMDLINE_LINUX_DEFAULT in
/etc/default/grub, run update-grub and reboot; or boot a 6.17 kernel, of which 6.17.0-1014 to 6.17.0-1032-nvidia are
known to be good. With kho=off the 7.0 kernels are not named.""",
    )

    def probe(self, host: Host) -> KernelFacts:
        return KernelFacts(
            release=kernel.release(host.files),
            kho_off=NO_KHO in kernel.command_line(host.files),
            kept_back_bytes=host.meminfo().cma_excess_bytes,
        )

    def judge(self, facts: KernelFacts) -> Verdict:
        problems = []
        if not facts.release:
            problems.append(Problem(Level.WARN, "the kernel's version can't be read", "uname -r"))
        if facts.kept_back_bytes:
            reason = (
                f"kernel {facts.release} keeps {size(facts.kept_back_bytes)} back for kexec handover: CmaFree is above"
            )
            reason += " CmaTotal, and NCCL's memory can't be registered once the rest is taken"
            problems.append(Problem(Level.WARN, reason, ADD_NO_KHO))
        mended = facts.kho_off or facts.kept_back_bytes > 0  # the latter is said already
        bad = known_bad.find(facts.release, KERNELS, (NO_KHO,) if mended else ())
        if bad:
            reason = f"kernel {facts.release} is known to be bad: {bad.trouble} ({bad.source})"
            problems.append(Problem(Level.WARN, reason, bad.remedy))
        return verdict(problems, f"kernel {facts.release}")
