"""An agent whose GPU's driver is a file: /run/gpu has its utilization in percent and its power in watts.

python -I agent_with_gpu.py PYTHON -I -c PROGRAM run --role head: as the command behind it, in this process.
"""

import ctypes
import sys
from pathlib import Path

import pynvml

from sparkd.tools.cli.main import main


class Library:
    """The driver's library at its ABI, with the functions that a watch over a GB10 needs."""

    def nvmlInitWithFlags(self, _flags: int) -> int:  # noqa: N802 - NVML's own names, here and below
        return 0

    def nvmlShutdown(self) -> int:  # noqa: N802
        return 0

    def nvmlDeviceGetCount_v2(self, count: object) -> int:  # noqa: N802
        return put(count, "value", 1)

    def nvmlDeviceGetHandleByIndex_v2(self, _index: object, _device: object) -> int:  # noqa: N802
        return 0

    def nvmlDeviceGetName(self, _device: object, buffer: ctypes.Array[ctypes.c_char], _size: object) -> int:  # noqa: N802
        buffer.value = b"NVIDIA GB10"
        return 0

    def nvmlDeviceGetUtilizationRates(self, _device: object, rates: object) -> int:  # noqa: N802
        return put(rates, "gpu", read()[0])

    def nvmlDeviceGetPowerUsage(self, _device: object, milliwatts: object) -> int:  # noqa: N802
        return put(milliwatts, "value", 1000 * read()[1])


def put(pointer: object, name: str, value: int) -> int:
    setattr(pointer._obj, name, value)  # type: ignore[attr-defined]  # of byref(): what it points to
    return 0


def read() -> tuple[int, int]:
    percent, watts = Path("/run/gpu").read_text().split()
    return int(percent), int(watts)


if __name__ == "__main__":
    pynvml.nvmlLib = Library()
    raise SystemExit(main(sys.argv[5:]))
