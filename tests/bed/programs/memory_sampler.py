"""Writes the least MemAvailable that it has seen, in KiB: memory_sampler.py FILE. Needs Python alone."""

import re
import sys
import time
from pathlib import Path

least_kib = 1 << 60
while True:
    available = re.search(r"MemAvailable: +(\d+)", Path("/proc/meminfo").read_text())
    if available and int(available[1]) < least_kib:
        least_kib = int(available[1])
        Path(sys.argv[1]).write_text(str(least_kib))
    time.sleep(0.05)
