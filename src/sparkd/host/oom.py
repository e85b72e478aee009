"""Processes that the kernel has killed for want of memory."""

from __future__ import annotations

from sparkd.host.files import Files


def kills(files: Files) -> int | None:
    """Since the machine booted; None where the kernel does not count them."""
    try:
        lines = files.text("/proc/vmstat", limit=1 << 20).splitlines()
    except OSError:
        return None
    counts = (line.split() for line in lines if line.startswith("oom_kill "))
    return next((int(words[1]) for words in counts if len(words) == 2 and words[1].isdecimal()), None)
