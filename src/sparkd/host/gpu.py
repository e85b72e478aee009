"""What the GPU's driver says: total memory, and which processes it serves."""

from __future__ import annotations

from dataclasses import dataclass

from sparkd.host.files import Files


@dataclass(frozen=True)
class GpuProcess:
    pid: int
    used_bytes: int | None
    """None where the driver does not say."""


@dataclass(frozen=True)
class GpuFacts:
    names: tuple[str, ...]
    """One for each GPU; empty where there is none, or no driver."""
    total_bytes: int | None
    """Memory of the GPUs together; None where they have none of their own (GB10 shares the machine's)."""
    processes: tuple[GpuProcess, ...] | None
    """None where the driver could not be asked."""
    error: str = ""
    """Why the driver could not be asked."""


NO_GPU = GpuFacts((), None, ())


def of_tree(files: Files) -> GpuFacts:
    """What a tree of files tells of a GPU: names alone."""
    found = []
    try:
        folders = files.names("/proc/driver/nvidia/gpus")
    except (FileNotFoundError, NotADirectoryError):
        return NO_GPU
    for folder in folders:
        text = files.text(f"/proc/driver/nvidia/gpus/{folder}/information", limit=65536)
        found += [line.partition(":")[2].strip() for line in text.splitlines() if line.startswith("Model:")]
    return GpuFacts(tuple(found), None, None) if found else NO_GPU
