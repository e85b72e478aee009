"""What the figures were measured on."""

import os
import platform
import re
from dataclasses import dataclass
from pathlib import Path

_MODEL = re.compile(r"^model name\s*:\s*(.+)$", re.MULTILINE)


@dataclass(frozen=True)
class Machine:
    version: str
    """Of sparkd."""
    cores: int
    processor: str
    kernel: str


def look(version: str) -> Machine:
    found = _MODEL.search(Path("/proc/cpuinfo").read_text())
    processor = found[1].strip() if found else platform.machine()
    return Machine(version, len(os.sched_getaffinity(0)), processor, platform.release())


def load() -> float:
    return round(os.getloadavg()[0], 2)
