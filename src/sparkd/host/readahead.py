"""How far the kernel reads ahead of whoever reads a file: a setting of the device that its file system is on."""

from __future__ import annotations

import os
from contextlib import suppress

from sparkd.host.files import Files

BDI = "/sys/class/bdi"
"""One folder for each device that caches: disks by the number of the whole disk, NFS by the file system's own."""


def setting(files: Files, folder: str) -> str:
    """Path of the setting for the files in `folder`. Raises OSError; FileNotFoundError where there is none (tmpfs)."""
    device = files.stat(folder).device
    number = f"{os.major(device)}:{os.minor(device)}"
    with suppress(FileNotFoundError, NotADirectoryError):
        # A partition reads ahead as its disk does. The folder above a partition's is the disk's.
        if files.exists(f"/sys/dev/block/{number}/partition"):
            number = files.text(f"/sys/dev/block/{number}/../dev", limit=64).strip()
    path = f"{BDI}/{number}/read_ahead_kb"
    files.stat(path)
    return path


def kib(files: Files, path: str) -> int:
    """Raises OSError, ValueError."""
    return int(files.text(path, limit=64))
