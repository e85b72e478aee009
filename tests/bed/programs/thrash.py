"""Works on more memory than it gets, in no order, with the rest in swap: thrash.py MIB [CGROUP]. Needs Python alone."""

from __future__ import annotations

import mmap
import random
import sys
from pathlib import Path

PAGE = 4096


def main() -> None:
    for group in sys.argv[2:]:
        Path(group, "cgroup.procs").write_text("0")
    size = int(sys.argv[1]) << 20
    with mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as area:
        for at in range(0, size, PAGE):
            area[at] = 1
        while True:
            area[random.randrange(0, size, PAGE)] = 1


main()
