"""The kernel's version, and memory that it keeps back for a kexec that never comes."""

from __future__ import annotations

from msgspec import Struct

from sparkd.host import Host, kernel
from sparkd.lib.text import size
from sparkd.preflight.check import About, Check, Level, Problem, Verdict, verdict


class KnownBad(Struct, frozen=True):
    version: str
    """The version, or its beginning: 590 is 590.44.01 too."""
    trouble: str
    remedy: str
    source: str
    fixed_by: str = ""
    """A word of the kernel's command line that fixes it."""

    def covers(self, version: str) -> bool:
        return version == self.version or version.startswith((f"{self.version}.", f"{self.version}-"))


NO_KHO = "kho=off"
ADD_NO_KHO = f"add {NO_KHO} to GRUB_CMDLINE_LINUX_DEFAULT in /etc/default/grub, run update-grub, reboot"
KHO_PINS = "it reserves gigabytes for kexec handover, and NCCL's memory can't be registered: ibv_reg_mr_iova2 fails"

KERNELS = (
    KnownBad(
        "6.17.0-1008-nvidia",
        "it panics, and the GPU may then be missing until a cold boot",
        "upgrade the kernel: 6.17.0-1014-nvidia and later are good",
        "NVIDIA forum 366026, Root cause analysis: DGX Spark driver failure",
    ),
    KnownBad("7.0.0-1019-nvidia", KHO_PINS, ADD_NO_KHO, "NVIDIA/NV-Kernels pull requests 590 and 591", NO_KHO),
    KnownBad("7.0.0-31", KHO_PINS, ADD_NO_KHO, "MiaAI-Lab/DeepSeek-v4-Flash-DSpark-2x-DGX-Spark issue 259", NO_KHO),
)
DRIVERS = (
    KnownBad(
        "580.159.03",
        "decoding was seen 3.5 times slower than with 580.142",
        "where decoding is slow, install another driver of branch 580",
        "Reederey87/dgx-spark-2x-deepseek-v4-flash, Hardware and firmware",
    ),
    KnownBad(
        "590",
        "CUDA graphs were seen to deadlock",
        "where the engine hangs while it captures graphs, install a driver of branch 580",
        "conselara.dev, NVIDIA DGX Spark GB10 hardware reference",
    ),
)


def find_known_bad(version: str, among: tuple[KnownBad, ...], command_line: tuple[str, ...] = ()) -> KnownBad | None:
    """What is known against a version, unless the kernel's command line fixes it."""
    return next((one for one in among if one.covers(version) and one.fixed_by not in command_line), None)


class KernelFacts(Struct, frozen=True):
    release: str
    kho_off: bool
    """Whether it was booted with kho=off."""
    kept_back_bytes: int
    """CmaFree beyond CmaTotal."""


class Kernel(Check[KernelFacts], frozen=True):
    """No kernel that is known to be bad on GB10."""

    id = "kernel"
    about = About(
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
ends with `ibv_reg_mr_iova2 ... Cannot allocate memory`. Add kho=off to GRUB_CMDLINE_LINUX_DEFAULT in /etc/default/grub,
run update-grub and reboot; or boot a 6.17 kernel, of which 6.17.0-1014 to 6.17.0-1032-nvidia are known to be good. With
kho=off the 7.0 kernels are ok.""",
    )

    def probe(self, host: Host) -> KernelFacts:
        return KernelFacts(
            release=kernel.read_release(host.files),
            kho_off=NO_KHO in kernel.read_command_line(host.files),
            kept_back_bytes=host.meminfo().cma_excess_bytes,
        )

    def judge(self, facts: KernelFacts) -> Verdict:
        problems = []
        if not facts.release:
            problems.append(Problem(Level.WARN, "the kernel's version can't be read", "uname -r"))
        if facts.kept_back_bytes:
            reason = f"kernel {facts.release} keeps {size(facts.kept_back_bytes)} back for kexec handover: CmaFree is "
            reason += "above CmaTotal, and NCCL's memory can't be registered once the rest is taken"
            problems.append(Problem(Level.WARN, reason, ADD_NO_KHO))
        known = facts.kho_off or facts.kept_back_bytes > 0  # the latter is reported above
        if bad := find_known_bad(facts.release, KERNELS, (NO_KHO,) if known else ()):
            reason = f"kernel {facts.release} is known to be bad: {bad.trouble} ({bad.source})"
            problems.append(Problem(Level.WARN, reason, bad.remedy))
        return verdict(problems, f"kernel {facts.release}")
