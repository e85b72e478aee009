"""The kernel that runs, and the one of the next boot: versions that keep memory back, or are known to be bad."""

import pytest
from tests.machines.areas.gpu import OPEN, module
from tests.tree import Tree
from tests.unit.verdicts import expect

from sparkd.agent.preflight.check import Level
from sparkd.agent.preflight.checks.kernel import Kernel, KernelFacts
from sparkd.base.host import Host
from sparkd.base.lib.text import GIB

GOOD = "6.17.0-1032-nvidia"


@pytest.mark.parametrize(
    ("facts", "level", "words"),
    [
        pytest.param(KernelFacts(GOOD, False, 0), Level.OK, f"kernel {GOOD}", id="good"),
        pytest.param(KernelFacts("", False, 0), Level.WARN, "can't be read", id="hidden"),
        pytest.param(KernelFacts("6.17.0-10080-nvidia", False, 0), Level.OK, "", id="only looks like it"),
        pytest.param(KernelFacts("7.0.0-1019-nvidia", False, 0), Level.WARN, "kho=off", id="KHO is on by default"),
        pytest.param(KernelFacts("7.0.0-31-generic", False, 0), Level.WARN, "kho=off", id="so in Ubuntu's HWE"),
        pytest.param(KernelFacts("7.0.0-30-generic", False, 0), Level.OK, "", id="the one before"),
        pytest.param(KernelFacts("7.0.0-1019-nvidia", True, 0), Level.OK, "", id="KHO is off"),
        pytest.param(KernelFacts(GOOD, False, 9 * GIB), Level.WARN, "9.0 GiB", id="the sign of KHO"),
        pytest.param(KernelFacts("7.0.0-1019-nvidia", False, 9 * GIB), Level.WARN, "9.0 GiB", id="named once"),
        pytest.param(KernelFacts(GOOD, True, 9 * GIB), Level.WARN, "kho=off", id="the sign, with kho=off too"),
    ],
)
def test_a_kernel_that_is_known_to_be_bad_warns(facts: KernelFacts, level: Level, words: str) -> None:
    verdict = Kernel().judge(facts)
    expect(verdict, level, text=words)
    assert verdict.reason.count(facts.release or "none") <= 1, "its release is named once"


def machine(tree: Tree, command_line: str = "quiet", **cma: float) -> Host:
    tree.file("/proc/sys/kernel/osrelease", f"{GOOD}\n")
    tree.file("/proc/cmdline", f"BOOT_IMAGE=/boot/vmlinuz {command_line}\n")
    tree.meminfo(MemTotal=120, MemFree=15, MemAvailable=20, **cma)
    return Host(tree.root)


@pytest.mark.parametrize(
    ("total_gib", "free_gib", "kept_back_gib"),
    [
        pytest.param(0, 0, 0, id="no contiguous area"),
        pytest.param(2, 1, 0, id="one in use"),
        pytest.param(0, 9, 9, id="KHO"),
    ],
)
def test_probe_reads_memory_that_is_kept_back(tree: Tree, total_gib: int, free_gib: int, kept_back_gib: int) -> None:
    host = machine(tree, CmaTotal=total_gib, CmaFree=free_gib)
    assert Kernel().probe(host) == KernelFacts(GOOD, False, kept_back_gib * GIB)


@pytest.mark.parametrize(
    ("names", "grub", "level"),
    [
        pytest.param((GOOD, "7.0.0-1019-nvidia"), None, Level.WARN, id="an upgrade has installed it"),
        pytest.param((GOOD, "7.0.0-1019-nvidia"), 'GRUB_CMDLINE_LINUX="quiet kho=off"', Level.OK, id="switched off"),
        pytest.param((GOOD, "7.0.0-1019-nvidia"), f'GRUB_DEFAULT="{GOOD}"', Level.OK, id="another was chosen"),
        pytest.param((GOOD, "7.0.0-1019-nvidia", "7.0.0-1020-nvidia"), None, Level.OK, id="a later one"),
        pytest.param((GOOD, "7.0.0-1019-nvidia.old"), None, Level.OK, id="a copy"),
        pytest.param(("6.17.0-999-nvidia", "6.17.0-1008-nvidia"), None, Level.WARN, id="by number"),
        pytest.param((), None, Level.OK, id="another boot loader"),
    ],
)
def test_the_kernel_of_the_next_boot_is_judged_before_it(
    tree: Tree, names: tuple[str, ...], grub: str | None, level: Level
) -> None:
    host = machine(tree)
    for name in names:
        tree.file(f"/boot/vmlinuz-{name}")
    if grub:
        tree.file("/etc/default/grub", f"GRUB_TIMEOUT=0\n{grub}\n")
    tree.file("/etc/default/grub.d/50-more.cfg", 'GRUB_CMDLINE_LINUX_DEFAULT="$GRUB_CMDLINE_LINUX_DEFAULT splash"\n')
    verdict = Kernel().judge(Kernel().probe(host))
    expect(verdict, level)
    if level is Level.WARN:
        _, latest = names
        assert f"the next boot takes kernel {latest}" in verdict.reason
        assert verdict.hint.startswith(f"sudo apt remove 'linux-image-*{latest}' && sudo apt-mark hold ")


LATER = "7.0.0-1020-nvidia"
PREBUILT = "kernel/nvidia-580-open/nvidia.ko: kernel/drivers/video/video.ko.zst"


@pytest.mark.parametrize(
    ("listing", "loaded", "level"),
    [
        pytest.param("kernel/fs/ext4/ext4.ko.zst:", True, Level.WARN, id="the kernel came before its module"),
        pytest.param("kernel/fs/ext4/ext4.ko.zst:", False, Level.OK, id="no module now, either"),
        pytest.param(PREBUILT, True, Level.OK, id="a package's"),
        pytest.param("updates/dkms/nvidia.ko.zst:", True, Level.OK, id="DKMS's"),
        pytest.param(None, True, Level.OK, id="unknown"),
        pytest.param("", True, Level.OK, id="too long for a capture"),
    ],
)
def test_a_next_kernel_without_the_gpus_module_is_named_before_the_boot(
    tree: Tree, listing: str | None, loaded: bool, level: Level
) -> None:
    host = machine(tree)
    for name in (GOOD, LATER):
        tree.file(f"/boot/vmlinuz-{name}")
    if listing is not None:
        tree.file(f"/lib/modules/{LATER}/modules.dep", listing and f"kernel/drivers/nvme/nvme.ko.zst:\n{listing}\n")
    if loaded:
        module(tree, f"{OPEN}  595.71.05")
    verdict = Kernel().judge(Kernel().probe(host))
    hint = f"before it: sudo apt install linux-modules-nvidia-595-open-{LATER}" if level is Level.WARN else ""
    expect(verdict, level, text=LATER if hint else GOOD)
    assert verdict.hint == hint


def test_a_folder_that_only_root_may_read_hides_no_judgement(tree: Tree) -> None:
    host = machine(tree)
    tree.link("/boot", "/boot")  # as unreadable for root, too
    assert Kernel().probe(host).release == GOOD


def test_probe_reads_what_the_kernel_was_booted_with(tree: Tree) -> None:
    assert Kernel().probe(machine(tree, command_line="quiet kho=off splash")).kho_off


@pytest.mark.parametrize(("hidden", "level"), [("cmdline", Level.OK), ("sys/kernel/osrelease", Level.WARN)])
def test_what_is_hidden_is_no_reason_to_block(tree: Tree, hidden: str, level: Level) -> None:
    host = machine(tree)
    (tree.root / "proc" / hidden).unlink()
    assert Kernel().run(host)[1].level is level
