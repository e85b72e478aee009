"""Give the page cache back: sync first, since dirty pages can't be dropped."""

from __future__ import annotations

import os
from pathlib import Path

from sparkd.hands.applied import Applied
from sparkd.host import Host

DROP_CACHES = "/proc/sys/vm/drop_caches"


def drop(host: Host) -> Applied:
    """May block for as long as the disks take. The note says what MemFree gained."""
    before = host.meminfo().free_bytes
    os.sync()
    try:
        Path(DROP_CACHES).write_text("3\n", encoding="ascii")
    except OSError as error:
        return Applied("failed", f"{DROP_CACHES}: {error.strerror}")
    gained = host.meminfo().free_bytes - before
    return Applied("applied", f"{max(0, gained) / (1 << 30):.1f} GiB freed")
