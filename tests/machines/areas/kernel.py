"""The kernel: its version, its log, and how the boot before this one ended."""

from tests.machines.fault import Fault
from tests.tree import Tree

from sparkd.agent.preflight.check import Level

RELEASE = "6.17.0-1032-nvidia"
COMMAND_LINE = "BOOT_IMAGE=/boot/vmlinuz-{} root=UUID=0b1f ro init_on_alloc=0 iommu.passthrough=0 quiet splash\n"
GPU = "PCI:000f:01:00"
LOADED = "NVRM: loading NVIDIA UNIX Open Kernel Module for aarch64  580.142  Release Build  (dvs-builder@U22)"
POWER = "mlx5_core {}: mlx5_pcie_event:326:(pid 3202): Detected insufficient power on the PCIe slot (27W)."
NO_MEMORY = (
    "NVRM: nvCheckOkFailedNoLog: Check failed: Out of memory [NV_ERR_NO_MEMORY] (0x00000051) returned from "
    "_memdescAllocInternal(pMemDesc) @ mem_desc.c:1359"
)


def healthy(tree: Tree, rank: int) -> None:
    release(tree, RELEASE)
    log(
        tree,
        (0.0, f"Linux version {RELEASE} (buildd@bos03-arm64-041) #32-Ubuntu SMP PREEMPT_DYNAMIC"),
        (4.2, LOADED),
        *((6.1, POWER.format(f"{domain}:01:00.{port}")) for domain in ("0000", "0002") for port in (0, 1)),
        (310.5, NO_MEMORY),
    )


def release(tree: Tree, version: str) -> None:
    tree.file("/proc/sys/kernel/osrelease", f"{version}\n")
    tree.file("/proc/cmdline", COMMAND_LINE.format(version))


def log(tree: Tree, *messages: tuple[float, str]) -> None:
    """/dev/kmsg: messages of the kernel, each with its time since boot."""
    tree.file("/dev/kmsg")
    more(tree, *messages)


def more(tree: Tree, *messages: tuple[float, str]) -> None:
    path = tree.root / "dev/kmsg"
    before = path.read_text()
    lines = [
        f"4,{number},{round(at * 1e6)},-;{text}\n" for number, (at, text) in enumerate(messages, before.count("\n"))
    ]
    path.write_text(before + "".join(lines))


def _bad_kernel(tree: Tree) -> None:
    release(tree, "6.17.0-1008-nvidia")


def _kexec_handover(tree: Tree) -> None:
    release(tree, "7.0.0-1019-nvidia")
    meminfo = tree.root / "proc/meminfo"
    # NV-Kernels pull request 590: 4,761 page blocks of 2 MiB.
    meminfo.write_text(f"{meminfo.read_text()}CmaTotal: 0 kB\nCmaFree: {4761 * 2048} kB\n")


def _fell_off(tree: Tree) -> None:
    more(
        tree,
        (9300, f"NVRM: Xid ({GPU}): 79, GPU has fallen off the bus."),
        (9300.1, f"NVRM: Xid ({GPU}): 154, GPU recovery action changed from 0x0 (None) to 0x2 (Node Reboot Required)"),
    )


def _firmware_dead(tree: Tree) -> None:
    timeout = "Timeout after 45s of waiting for RPC response from GPU0 GSP! Expected function 76 (GSP_RM_CONTROL)"
    more(tree, *((9000 + 45 * number, f"NVRM: Xid ({GPU}): 119, pid=4848, {timeout}") for number in range(3)))


def _killed_for_memory(tree: Tree) -> None:
    killed = "Killed process 4848 (VLLM::EngineCor) total-vm:172233344kB, anon-rss:5611288kB, file-rss:0kB"
    more(tree, (2800, f"Out of memory: {killed}, shmem-rss:104448kB, UID:0 pgtables:15200kB oom_score_adj:0"))


def _nic_reset(tree: Tree) -> None:
    more(
        tree,
        (5000, "pcieport 0000:00:00.0: AER: Uncorrectable (Fatal) error message received from 0000:01:00.0"),
        (5001, "mlx5_core 0000:01:00.0: mlx5_pci_slot_reset Device state = 2 health sensors: 0 pci_status: 0. Enter"),
    )


LOG = "kernel-log"
FAULTS = (
    Fault("kernel-that-panics", _bad_kernel, Level.WARN, "kernel", says="6.17.0-1014-nvidia"),
    Fault("kernel-keeps-memory-back", _kexec_handover, Level.WARN, "kernel", says="kho=off", rank=1),
    Fault("gpu-fell-off-the-bus", _fell_off, Level.BLOCK, LOG, says="unplug it for 60 s"),
    Fault("gpu-firmware-dead", _firmware_dead, Level.BLOCK, LOG, says="3 times"),
    Fault("killed-for-memory", _killed_for_memory, Level.WARN, LOG, says="VLLM::EngineCor"),
    Fault("nic-reset-by-pcie-error", _nic_reset, Level.WARN, LOG, says="0000:01:00.0", rank=1),
)
