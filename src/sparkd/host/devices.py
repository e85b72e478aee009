"""The GPU's device files, and which processes have them open."""

from __future__ import annotations

import re
from collections.abc import Iterable

from sparkd.host import open_files
from sparkd.host.files import Files
from sparkd.host.open_files import OpenFiles
from sparkd.host.processes import Process

_GPU_DEVICE = re.compile(r"/dev/nvidia(?:\d+|ctl|-uvm|-uvm-tools|-modeset|-caps/.*)\Z")
_GPU = re.compile(r"nvidia\d+\Z")


def gpu_present(files: Files) -> bool:
    """Whether the driver has made a device of a GPU."""
    return any(_GPU.match(name) for name in files.names("/dev"))


def gpu_users(files: Files, processes: Iterable[Process]) -> OpenFiles:
    """Every open descriptor of a GPU device, and the processes whose descriptors could not be looked at."""
    opened = open_files.of(files, processes)
    return OpenFiles(
        tuple(file for file in opened.found if _GPU_DEVICE.match(file.target)),
        opened.unreadable_pids,
    )
