"""A machine of arm64 in QEMU: two cores, an NVMe disk, and no network."""

from dataclasses import dataclass
from pathlib import Path

from tests.bed.command import Argument
from tests.bed.qemu.disk import KERNEL
from tests.bed.qemu.machine import Machine

MEMORY_MIB = 3072


@dataclass
class Arm64Machine(Machine):
    """It needs no power cuts: what the guest syncs is not awaited on this machine's disk."""

    def _board(self, image: Path) -> list[Argument]:
        return [
            "qemu-system-aarch64", "-machine", "virt,gic-version=3", "-cpu", "neoverse-n1", "-icount", "shift=0",
            "-m", str(MEMORY_MIB),
            "-kernel", self.base / KERNEL, "-append", self._kernel_line("/dev/nvme0n1", "ttyAMA0"),
            "-drive", f"file={image},format=qcow2,if=none,id=disk,cache=unsafe",
            "-device", "nvme,drive=disk,serial=spark",
        ]  # fmt: skip

    def _cables(self) -> list[str]:
        return []
