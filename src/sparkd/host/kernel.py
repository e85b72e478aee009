"""The kernel: its version, what it was booted with, and the NVIDIA module that is loaded into it."""

from __future__ import annotations

import re
from typing import NamedTuple

from sparkd.host.files import Files
from sparkd.lib.text import sanitize

_MODULE = re.compile(r"NVRM version: +NVIDIA UNIX (Open )?.*?([0-9]+(?:\.[0-9]+)+)")


class NvidiaModule(NamedTuple):
    version: str
    open: bool
    """Built of the open kernel modules."""


def release(files: Files) -> str:
    """As `uname -r` says it; empty where that can't be read."""
    try:
        return sanitize(files.text("/proc/sys/kernel/osrelease", limit=4096).strip(), 100)
    except OSError:
        return ""


def command_line(files: Files) -> tuple[str, ...]:
    """The words that the kernel was booted with; none where that can't be read."""
    try:
        return tuple(files.text("/proc/cmdline", limit=65536).split())
    except OSError:
        return ()


def nvidia_module(files: Files) -> NvidiaModule | None:
    """The NVIDIA module that is loaded, if any."""
    try:
        found = _MODULE.match(files.text("/proc/driver/nvidia/version", limit=4096))
    except (FileNotFoundError, NotADirectoryError):
        return None
    if found is None:  # whether the GPU works, its driver tells
        return NvidiaModule("of a version that it does not tell", open=True)
    return NvidiaModule(found[2], bool(found[1]))
