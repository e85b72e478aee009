"""The kernel: its version, memory that it keeps back for a kexec that never comes, and its settings."""

from collections.abc import Iterator
from shlex import quote

from msgspec import Struct, toml

from sparkd.agent.preflight.check import Check, Level, Verdict, combine_verdicts, warn
from sparkd.base.host import Host, kernel
from sparkd.base.host.grub import read_next_boot
from sparkd.base.lib import read_data
from sparkd.base.lib.text import GIB, size
from sparkd.base.plan.model import LaunchPlan


class KnownBad(Struct, frozen=True, forbid_unknown_fields=True):
    version: str
    """The version, or its beginning: 590 covers 590.44.01."""
    trouble: str
    remedy: str
    source: str
    fixed_by: str = ""
    """A word of the kernel's command line that fixes it."""

    def covers(self, version: str) -> bool:
        return version == self.version or version.startswith((f"{self.version}.", f"{self.version}-"))


class KnownBadVersions(Struct, frozen=True, forbid_unknown_fields=True):
    """Content of known-bad.toml."""

    kernels: tuple[KnownBad, ...]
    drivers: tuple[KnownBad, ...]


_KNOWN_BAD = toml.decode(read_data("known-bad.toml"), type=KnownBadVersions)
KERNELS, DRIVERS = _KNOWN_BAD.kernels, _KNOWN_BAD.drivers
NO_KHO = "kho=off"


def find_known_bad(version: str, among: tuple[KnownBad, ...], command_line: tuple[str, ...] = ()) -> KnownBad | None:
    """The entry for a version, if there is one and the kernel's command line does not fix it."""
    return next((bad for bad in among if bad.covers(version) and bad.fixed_by not in command_line), None)


def branch_of(version: str) -> str:
    return version[:3] if version[:3].isdecimal() else "580"  # unknown: the branch of DGX OS


class KernelFacts(Struct, frozen=True):
    release: str
    kho_off: bool
    kept_back_bytes: int
    """How much CmaFree is above CmaTotal: memory kept back for kexec handover (KHO)."""
    next_release: str = ""
    """The release that the next boot takes; empty where it is this one, or unknown."""
    next_words: tuple[str, ...] = ()
    """Words of its command line."""
    _lacking: str = ""
    """Package of the GPU's module for the next kernel, where that has none and this one has; else empty."""


class Kernel(Check[KernelFacts], frozen=True):
    id = "kernel"
    levels = (Level.WARN,)

    def probe(self, host: Host) -> KernelFacts:
        kho_off = NO_KHO in kernel.read_command_line(host.files)
        release = kernel.read_release(host.files)
        next_release, next_words = read_next_boot(host.files)
        if next_release == release:
            next_release, next_words = "", ()
        lost = kernel.read_nvidia_module(host.files) if kernel.lacks_nvidia_module(host.files, next_release) else None
        lacking = f"linux-modules-nvidia-{branch_of(lost.version)}-open-{next_release}" if lost else ""
        return KernelFacts(release, kho_off, host.meminfo().cma_excess_bytes, next_release, next_words, lacking)

    def judge(self, facts: KernelFacts) -> Verdict:
        return combine_verdicts(self._find_problems(facts), f"kernel {facts.release}")

    def _find_problems(self, facts: KernelFacts) -> Iterator[Verdict]:
        if not facts.release:
            yield warn("the kernel's version can't be read", "uname -r")
        if facts.kept_back_bytes:
            reason = f"kernel {facts.release} keeps {size(facts.kept_back_bytes)} back for kexec handover: CmaFree is "
            reason += "above CmaTotal, and NCCL's memory can't be registered once the rest is taken"
            hint = f"add {NO_KHO} to GRUB_CMDLINE_LINUX_DEFAULT in /etc/default/grub; sudo update-grub && sudo reboot"
            yield warn(reason, hint)
        kho_is_covered = facts.kho_off or facts.kept_back_bytes > 0  # switched off, or reported above
        if bad := find_known_bad(facts.release, KERNELS, (NO_KHO,) if kho_is_covered else ()):
            reason = f"kernel {facts.release} is known to be bad: {bad.trouble} ({bad.source})"
            yield warn(reason, bad.remedy)
        if bad := find_known_bad(facts.next_release, KERNELS, facts.next_words):
            reason = f"the next boot takes kernel {facts.next_release}, which is known to be bad: {bad.trouble}"
            images = quote(f"linux-image-*{facts.next_release}")  # or linux-image-unsigned-, as on some Sparks
            hint = f"sudo apt remove {images} && sudo apt-mark hold {images}; or before it: {bad.remedy}"
            yield warn(f"{reason} ({bad.source})", hint)
        elif facts._lacking:
            reason = f"the next boot takes kernel {facts.next_release}, for which no NVIDIA module is installed: no GPU"
            yield warn(reason, f"before it: sudo apt install {facts._lacking}")


FEWEST_PIDS = 8192
"""Least good kernel.pid_max."""


class Setting(Struct, frozen=True):
    name: str
    wanted: str
    found: str | None
    """The present value; None where this kernel has no such setting."""


class SettingsFacts(Struct, frozen=True):
    wanted: tuple[Setting, ...]
    reserved_bytes: int
    """vm.min_free_kbytes."""
    overcommit: int
    pid_max: int
    huge_pages_bytes: int
    recovery: kernel.Recovery = kernel.Recovery()


class KernelSettings(Check[SettingsFacts], frozen=True):
    plan: LaunchPlan
    id = "kernel-settings"
    levels = (Level.WARN, Level.UNKNOWN)

    def probe(self, host: Host) -> SettingsFacts:
        def read_number(name: str, default: int) -> int:
            text = kernel.read_sysctl(host.files, name)
            if text is not None and not text.isdecimal():
                raise ValueError(f"{name} is {text[:40]!r}, which is no number")
            return default if text is None else int(text)

        return SettingsFacts(
            wanted=tuple(
                Setting(name, value, kernel.read_sysctl(host.files, name)) for name, value in self.plan.sysctls
            ),
            reserved_bytes=read_number("vm.min_free_kbytes", 0) * 1024,
            overcommit=read_number("vm.overcommit_memory", 0),
            pid_max=read_number("kernel.pid_max", FEWEST_PIDS),
            huge_pages_bytes=host.meminfo().huge_pages_bytes,
            recovery=kernel.read_recovery(host.files),
        )

    def judge(self, facts: SettingsFacts) -> Verdict:
        wanted = f"the {len(facts.wanted)} that the recipe wants are set" if facts.wanted else "the recipe wants none"
        return combine_verdicts(_find_problems(facts), f"{wanted}, nothing harmful; {facts.recovery.text}")


def _find_problems(facts: SettingsFacts) -> Iterator[Verdict]:
    # What `tune apply` would refuse comes first.
    for setting in sorted(facts.wanted, key=lambda setting: setting.found is not None):
        if setting.found is None:
            hint = "take it out of the recipe's host.sysctls, or boot the kernel that the recipe was made for"
            yield warn(f"{setting.name}: this kernel has no such setting, the recipe wants {setting.wanted}", hint)
        elif setting.found != setting.wanted:
            reason = f"{setting.name} is {setting.found}, the recipe wants {setting.wanted}"
            yield warn(reason, "sudo sparkd tune apply")
    if facts.reserved_bytes > 8 * GIB:
        reason = f"vm.min_free_kbytes keeps {size(facts.reserved_bytes)} from everybody, the engine too"
        yield warn(reason, "sudo sysctl -w vm.min_free_kbytes=1572864")
    if facts.overcommit == 2:
        reason = "vm.overcommit_memory=2: CUDA reserves more addresses than there is memory"
        yield warn(reason, "sudo sysctl -w vm.overcommit_memory=0")
    if facts.pid_max < FEWEST_PIDS:
        reason = f"kernel.pid_max={facts.pid_max}: an engine and its compilers have some thousand threads"
        yield warn(reason, "sudo sysctl -w kernel.pid_max=4194304")
    if facts.huge_pages_bytes > GIB:
        reason = f"{size(facts.huge_pages_bytes)} are set apart as huge pages, which the engine does not use"
        yield warn(reason, "sudo sysctl -w vm.nr_hugepages=0")
