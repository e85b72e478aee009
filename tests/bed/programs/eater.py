"""Takes memory at a steady pace, all or so much, and keeps it: eater.py GB_PER_SECOND [GIB]. Needs Python alone."""

from __future__ import annotations

import mmap
import signal
import sys
import time

STEP_BYTES = 16 << 20
NORESERVE = 0x4000
POPULATE_WRITE = 23


def main() -> None:
    pace, end = float(sys.argv[1]) * 1e9, int(float(sys.argv[2] if len(sys.argv) > 2 else "64") * 2**30)
    with mmap.mmap(-1, end, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | NORESERVE) as area:
        area.madvise(mmap.MADV_HUGEPAGE)
        began = time.monotonic()
        for start in range(0, end, STEP_BYTES):
            time.sleep(max(0.0, began + start / pace - time.monotonic()))
            area.madvise(POPULATE_WRITE, start, STEP_BYTES)
        print("held", flush=True)
        signal.pause()


main()
