"""What the GPU's driver says: total memory, and which processes it serves."""

from __future__ import annotations

import json
from enum import Enum

from msgspec import Struct

from sparkd.host.files import Files
from sparkd.host.recorded import FOLDER
from sparkd.lib.text import sanitize

RECORDED = f"{FOLDER}/nvml.json"
AWAITED = "the GPU's driver"
"""What checks that could not ask it say that they wait for."""


class Trouble(Enum):
    """What is wrong where the driver did not answer as it should."""

    NONE = ""
    HUNG = "hung"
    LOST = "lost"
    RESET = "reset-required"
    MISMATCH = "version-mismatch"
    NOT_LOADED = "not-loaded"
    FORBIDDEN = "forbidden"
    OTHER = "other"


class GpuProcess(Struct, frozen=True):
    pid: int
    used_bytes: int | None
    """None where the driver does not say."""


class GpuFacts(Struct, frozen=True):
    names: tuple[str, ...]
    """One for each GPU; empty where there is none, or no driver."""
    total_bytes: int | None
    """Memory of the GPUs together; None where they have none of their own (GB10 shares the machine's)."""
    processes: tuple[GpuProcess, ...] | None
    """None where the driver could not be asked."""
    error: str = ""
    """Why the driver could not be asked."""
    driver: str = ""
    """Its version, such as 580.142; empty where it does not say."""
    trouble: Trouble = Trouble.NONE


NO_GPU = GpuFacts((), None, ())


def hung(seconds: float) -> GpuFacts:
    return GpuFacts((), None, None, f"it did not answer in {seconds:g} s", trouble=Trouble.HUNG)


def of_tree(files: Files) -> GpuFacts:
    """What the driver said when the machine was recorded; without that, the names that its /proc files tell."""
    try:
        text = files.text(RECORDED, limit=1 << 20)
    except (FileNotFoundError, NotADirectoryError):
        return _names_alone(files)
    return parse(text)


def parse(text: str) -> GpuFacts:
    """The driver's recorded answer: GpuFacts as JSON, or `{"hangs": true}`. Raises ValueError for anything else."""
    match json.loads(text):
        case {"hangs": True}:
            return hung(10)
        case {"names": list(names), **rest} if all(isinstance(name, str) for name in names):
            total, processes = rest.get("total_bytes"), rest.get("processes")
            return GpuFacts(
                tuple(sanitize(name) for name in names),
                total if isinstance(total, int) else None,
                tuple(_process(one) for one in processes) if isinstance(processes, list) else None,
                sanitize(str(rest.get("error", ""))),
                sanitize(str(rest.get("driver", ""))),
                Trouble(rest.get("trouble", "")),
            )
    raise ValueError(f"{RECORDED} is no answer of the driver")


def _process(recorded: object) -> GpuProcess:
    match recorded:
        case {"pid": int(pid), **rest}:
            used = rest.get("used_bytes")
            return GpuProcess(pid, used if isinstance(used, int) else None)
    raise ValueError(f"{RECORDED} lists what is no process")


def _names_alone(files: Files) -> GpuFacts:
    found = []
    try:
        folders = files.names("/proc/driver/nvidia/gpus")
    except (FileNotFoundError, NotADirectoryError):
        return NO_GPU
    for folder in folders:
        text = files.text(f"/proc/driver/nvidia/gpus/{folder}/information", limit=65536)
        found += [line.partition(":")[2].strip() for line in text.splitlines() if line.startswith("Model:")]
    return GpuFacts(tuple(found), None, None) if found else NO_GPU
