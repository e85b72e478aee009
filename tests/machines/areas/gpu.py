"""The GPU and its driver."""

import json

from tests.machines.fault import Fault
from tests.tree import Tree

from sparkd.agent.preflight.check import Level

DRIVER = "580.142"
OPEN = "NVIDIA UNIX Open Kernel Module for aarch64"
PROPRIETARY = "NVIDIA UNIX aarch64 Kernel Module"


def healthy(tree: Tree, rank: int) -> None:
    answer(tree, names=["NVIDIA GB10"], driver=DRIVER)
    module(tree, f"{OPEN}  {DRIVER}")
    tree.file("/dev/nvidia0")


def answer(tree: Tree, **says: object) -> None:
    """What the driver says: memory is none of its own, and no process uses it."""
    tree.file("/.sparkd/nvml.json", json.dumps({"total_bytes": None, "processes": [], **says}))


def module(tree: Tree, version: str) -> None:
    """/proc/driver/nvidia/version as the module that is loaded writes it."""
    line = f"NVRM version: {version}  Release Build  (dvs-builder@U22-I3-AM02-24-1)"
    gcc = "GCC version:  gcc version 13.3.0 (Ubuntu 13.3.0-6ubuntu2~24.04.1)"
    tree.file("/proc/driver/nvidia/version", f"{line}\n{gcc}\n")


def _hangs(tree: Tree) -> None:
    tree.file("/.sparkd/nvml.json", '{"hangs": true}')


def _not_loaded(tree: Tree) -> None:
    error = "the driver is not loaded (nvmlInit_v2 answered 9)"
    answer(tree, names=[], error=error, trouble="not-loaded")
    (tree.root / "proc/driver/nvidia/version").unlink()


def _proprietary(tree: Tree) -> None:
    answer(tree, names=[], driver="580.173.02")
    module(tree, f"{PROPRIETARY}  580.173.02")


def _half_upgraded(tree: Tree) -> None:
    error = "library and driver differ in version, as after an upgrade without a reboot (nvmlInit_v2 answered 18)"
    answer(tree, names=[], error=error, trouble="version-mismatch")


def _slow_driver(tree: Tree) -> None:
    answer(tree, names=["NVIDIA GB10"], driver="580.159.03")
    module(tree, f"{OPEN}  580.159.03")


MEMORY = ("unified-memory", "memory-held", "model-memory")
FAULTS = (
    Fault("gpu-hangs", _hangs, Level.BLOCK, "gpu", says="unplug it for 60 s", also=MEMORY),
    Fault("gpu-driver-not-loaded", _not_loaded, Level.BLOCK, "gpu", says="sudo modprobe nvidia", also=MEMORY),
    Fault("gpu-proprietary-module", _proprietary, Level.BLOCK, "gpu", says="nvidia-driver-580-open", also=MEMORY),
    Fault("gpu-driver-half-upgraded", _half_upgraded, Level.BLOCK, "gpu", says="reboot", rank=1, also=MEMORY),
    Fault("gpu-driver-reported-slow", _slow_driver, Level.WARN, "gpu", says="580.142"),
)
