"""Versions of kernel and driver that are known to be bad on GB10, as data. Most rest on one report: they warn."""

from __future__ import annotations

from msgspec import Struct


class KnownBad(Struct, frozen=True):
    version: str
    """The version, or how it begins: 590 is 590.44.01 too."""
    trouble: str
    remedy: str
    source: str
    reported: str
    """Year and month of the report; empty where it bears no date."""
    mended_by: str = ""
    """A word of the kernel's command line that mends it."""

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
        "2026-03",
    ),
    KnownBad(
        "7.0.0-1019-nvidia", KHO_PINS, ADD_NO_KHO, "NVIDIA/NV-Kernels pull requests 590 and 591", "2026-09", NO_KHO
    ),
    KnownBad(
        "7.0.0-31", KHO_PINS, ADD_NO_KHO, "MiaAI-Lab/DeepSeek-v4-Flash-DSpark-2x-DGX-Spark issue 259", "2026-09", NO_KHO
    ),
)
DRIVERS = (
    KnownBad(
        "580.159.03",
        "decoding was seen 3.5 times slower than with 580.142",
        "where decoding is slow, install another driver of branch 580",
        "Reederey87/dgx-spark-2x-deepseek-v4-flash, Hardware and firmware",
        "",
    ),
    KnownBad(
        "590",
        "CUDA graphs were seen to deadlock",
        "where the engine hangs while it captures graphs, install a driver of branch 580",
        "conselara.dev, NVIDIA DGX Spark GB10 hardware reference",
        "",
    ),
)


def find(version: str, among: tuple[KnownBad, ...], command_line: tuple[str, ...] = ()) -> KnownBad | None:
    """What is known against a version, unless the kernel's command line mends it."""
    for one in among:
        if one.covers(version) and one.mended_by not in command_line:
            return one
    return None
