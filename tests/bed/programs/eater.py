"""Takes memory at a steady pace until it is killed: eater.py GB_PER_SECOND. Needs nothing but Python."""

from __future__ import annotations

import mmap
import sys
import time

ALL_BYTES = 64 << 30
STEP_BYTES = 16 << 20
NORESERVE = 0x4000
POPULATE_WRITE = 23


def main() -> None:
    pace = float(sys.argv[1]) * 1e9
    with mmap.mmap(-1, ALL_BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | NORESERVE) as area:
        area.madvise(mmap.MADV_HUGEPAGE)
        began = time.monotonic()
        for start in range(0, ALL_BYTES, STEP_BYTES):
            time.sleep(max(0.0, began + start / pace - time.monotonic()))
            area.madvise(POPULATE_WRITE, start, STEP_BYTES)


main()
