"""The kernel that runs, and the one of the next boot: versions that keep memory back, or are known to be bad."""

import pytest
from tests.machines.areas.gpu import OPEN, module
from tests.tree import Tree
from tests.unit.verdicts import expect

from sparkd.agent.preflight.check import Level
from sparkd.agent.preflight.checks.kernel import Kernel, KernelFacts
from sparkd.base.host import Host
from sparkd.base.lib.text import GIB

GOOD, BAD = "6.17.0-1032-nvidia", "7.0.0-1019-nvidia"
REMOVE_BAD = f"sudo apt remove 'linux-image-*{BAD}' && sudo apt-mark hold"


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
        pytest.param(KernelFacts(GOOD, False, 0, BAD), Level.WARN, REMOVE_BAD, id="the next one"),
        pytest.param(KernelFacts(GOOD, False, 0, BAD, ("kho=off",)), Level.OK, "", id="off for the next one"),
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


def test_probe_reads_the_command_lines_of_this_boot_and_the_next(tree: Tree) -> None:
    host = machine(tree, "quiet kho=off splash")
    for release in (GOOD, BAD):
        tree.file(f"/boot/vmlinuz-{release}")
    tree.file("/etc/default/grub", 'GRUB_CMDLINE_LINUX="quiet"\n')
    assert Kernel().probe(host) == KernelFacts(GOOD, True, 0, BAD, ("quiet",))


LATER = "7.0.0-1020-nvidia"
INSTALL_MODULE = f"before it: sudo apt install linux-modules-nvidia-595-open-{LATER}"
OTHERS = "kernel/drivers/nvme/nvme.ko.zst:\nkernel/fs/ext4/ext4.ko.zst:\n"
PREBUILT = "kernel/nvidia-580-open/nvidia.ko: kernel/drivers/video/video.ko.zst"


def next_kernel(tree: Tree, listing: str) -> Host:
    """A machine whose next kernel has these modules."""
    host = machine(tree)
    for release in (GOOD, LATER):
        tree.file(f"/boot/vmlinuz-{release}")
    tree.file(f"/lib/modules/{LATER}/modules.dep", listing)
    return host


def test_a_next_kernel_that_came_before_the_gpus_module_is_named_before_the_boot(tree: Tree) -> None:
    host = next_kernel(tree, OTHERS)
    expect(Kernel().run(host)[1], Level.OK, hint="")  # no module now, either
    module(tree, f"{OPEN}  595.71.05")
    expect(Kernel().run(host)[1], Level.WARN, hint=INSTALL_MODULE)


@pytest.mark.parametrize(
    "listing",
    [
        pytest.param(f"{OTHERS}{PREBUILT}\n", id="a package's"),
        pytest.param(f"{OTHERS}updates/dkms/nvidia.ko.zst:\n", id="DKMS's"),
        pytest.param("", id="too long for a capture"),
    ],
)
def test_a_next_kernel_that_has_the_gpus_module_or_no_list_is_good(tree: Tree, listing: str) -> None:
    host = next_kernel(tree, listing)
    module(tree, f"{OPEN}  595.71.05")
    expect(Kernel().run(host)[1], Level.OK, hint="")


def test_a_next_kernel_whose_modules_are_unreadable_is_good(tree: Tree) -> None:
    host = next_kernel(tree, "")
    tree.path(f"/lib/modules/{LATER}/modules.dep").unlink()
    module(tree, f"{OPEN}  595.71.05")
    expect(Kernel().run(host)[1], Level.OK, hint="")


def test_a_folder_that_only_root_may_read_hides_no_judgement(tree: Tree) -> None:
    host = machine(tree)
    tree.link("/boot", "/boot")  # as unreadable for root, too
    assert Kernel().probe(host).release == GOOD


@pytest.mark.parametrize(("hidden", "level"), [("cmdline", Level.OK), ("sys/kernel/osrelease", Level.WARN)])
def test_what_is_hidden_is_no_reason_to_block(tree: Tree, hidden: str, level: Level) -> None:
    host = machine(tree)
    (tree.root / "proc" / hidden).unlink()
    assert Kernel().run(host)[1].level is level
