"""Give the page cache back: sync first, since dirty pages can't be dropped."""

from __future__ import annotations

import os

from sparkd.hands.applied import Applied
from sparkd.host import Host

DROP_CACHES = "/proc/sys/vm/drop_caches"


def drop(host: Host) -> Applied:
    """May block for as long as the disks take. The note says what MemFree gained."""
    before = host.meminfo()["MemFree"]
    os.sync()
    try:
        with open(DROP_CACHES, "w", encoding="ascii") as file:
            file.write("3\n")
    except OSError as error:
        return Applied("failed", f"{DROP_CACHES}: {error.strerror}")
    gained = host.meminfo()["MemFree"] - before
    return Applied("applied", f"{max(0, gained) / (1 << 30):.1f} GiB freed")
