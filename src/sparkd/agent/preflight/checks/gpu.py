"""The GPU: whether it is present, its driver answers, and the driver's version is not known to be bad."""

from msgspec import Struct

from sparkd.agent.preflight.check import Check, Level, Verdict, block, ok, unknown, warn
from sparkd.agent.preflight.checks.kernel import DRIVERS, branch_of, find_known_bad
from sparkd.base.host import Host, kernel
from sparkd.base.host.gpu import DRIVER_NAME, Trouble
from sparkd.base.lib.errors import Action

GB10 = "GB10"
POWER_CYCLE = "power-cycle this node: sudo poweroff, then unplug it for 60 s"
LOAD = "sudo modprobe nvidia; where it fails: dkms status; sudo dmesg"
_REMEDIES = {
    Trouble.HUNG: (POWER_CYCLE, Action.POWER_CYCLE),
    Trouble.LOST: (POWER_CYCLE, Action.POWER_CYCLE),
    Trouble.RESET: ("reboot this node: sudo systemctl reboot", Action.REBOOT),
    Trouble.MISMATCH: ("reboot this node, to load the driver that was installed: sudo systemctl reboot", Action.REBOOT),
}
"""Remedies that only a person can apply, as hint and action."""


class GpuCheckFacts(Struct, frozen=True):
    asked: bool  # words: keep - a key of the report
    """Whether the driver was queried: not where the plan uses no GPU."""
    names: tuple[str, ...] = ()
    driver: str = ""
    module: str = ""
    """Version of the kernel's module; empty where none is loaded."""
    module_open: bool = False
    trouble: Trouble = Trouble.NONE
    error: str = ""
    _lacking_release: str = ""
    """The kernel's release, where no module is loaded because none is installed for it; else empty."""


class Gpu(Check[GpuCheckFacts], frozen=True):
    gpus: int = 1
    """How many the plan needs; 0: the driver is not queried."""
    id = "gpu"
    levels = (Level.WARN, Level.BLOCK, Level.UNKNOWN)

    def probe(self, host: Host) -> GpuCheckFacts:
        if not self.gpus:
            return GpuCheckFacts(asked=False)  # words: keep
        gpu = host.gpu()
        module, release = kernel.read_nvidia_module(host.files), kernel.read_release(host.files)
        lacks_module = not (gpu.names or module) and kernel.lacks_nvidia_module(host.files, release)
        return GpuCheckFacts(
            asked=True,  # words: keep
            names=gpu.names,
            driver=gpu.driver or (module.version if module and gpu.names else ""),
            module=module.version if module else "",
            module_open=module is not None and module.open,
            trouble=Trouble.OTHER if gpu.error and gpu.trouble is Trouble.NONE else gpu.trouble,
            error=gpu.error,
            _lacking_release=release if lacks_module else "",
        )

    def judge(self, facts: GpuCheckFacts) -> Verdict:
        if not facts.asked:  # words: keep
            return ok("the plan uses no GPU")
        if release := facts._lacking_release:
            reason = f"kernel {release} has no NVIDIA module installed, as after an upgrade of the kernel alone"
            install = f"sudo apt install linux-modules-nvidia-580-open-{release} && sudo reboot"
            return block(reason, f"{install}; where DKMS builds it: sudo dkms autoinstall")
        if facts.trouble is not Trouble.NONE:
            return _judge_trouble(facts.trouble, f"the GPU's driver can't be queried: {facts.error}", facts.module)
        if not facts.names:
            return _judge_absence(facts)
        if len(facts.names) < self.gpus:
            reason = f"{len(facts.names)} GPU(s) are seen, and the recipe's nodes.gpus is {self.gpus}"
            hint = "look at: nvidia-smi -L; set nodes.gpus of the recipe, and its ranks, to what is there"
            return block(reason, hint)
        known_bad = find_known_bad(facts.driver, DRIVERS) if any(GB10 in name for name in facts.names) else None
        if known_bad:
            reason = f"driver {facts.driver} was reported as bad on GB10: {known_bad.trouble} ({known_bad.source})"
            return warn(reason, known_bad.remedy)
        return ok(f"{', '.join(facts.names)}, driver {facts.driver or 'of unknown version'}")


def _judge_trouble(trouble: Trouble, reason: str, module: str) -> Verdict:
    if trouble is Trouble.FORBIDDEN:
        return unknown(reason, "sudo sparkd preflight --dry-run")
    awaits = DRIVER_NAME if trouble is Trouble.HUNG else ""  # it may be busy, as while a node boots
    if remedy := _REMEDIES.get(trouble):
        hint, action = remedy
        return block(reason, hint, needs_person=True, awaits=awaits, action=action)
    if trouble is Trouble.NO_LIBRARY:  # as after an apt run that was interrupted
        install = f"sudo apt install --reinstall libnvidia-compute-{branch_of(module)}"
        return block(reason, f"{install}; ldconfig -p | grep libnvidia-ml")
    return block(reason, LOAD if trouble is Trouble.NOT_LOADED else "look at: nvidia-smi; sudo dmesg")


def _judge_absence(facts: GpuCheckFacts) -> Verdict:
    if not facts.module:
        return block("no GPU is seen, and no NVIDIA kernel module is loaded", LOAD)
    if not facts.module_open:
        reason = f"no GPU is seen: GB10 needs open kernel modules, and {facts.module} is a proprietary one"
        hint = "install the open kernel modules: sudo apt install nvidia-driver-580-open && sudo reboot"
        return block(reason, hint, needs_person=True)
    reason = f"no GPU is seen by the kernel module {facts.module}"
    return block(reason, f"look at: nvidia-smi; sudo dmesg | grep -e NVRM -e Xid; then {POWER_CYCLE}")
