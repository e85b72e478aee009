"""A stand-in for a rank that compiles kernels beside its weights, as FlashInfer at vLLM's profiling; then it serves.

UNIT_BYTES of memory stand for each GiB that was measured (docs/adr/0064). It holds WEIGHTS of them, reads MAX_JOBS
unless UNBOUNDED is set, and compiles what its cache lacks. `endpoint_alike.py` is beside it.
"""

from __future__ import annotations

import mmap
import os
import runpy
import subprocess
import sys
from pathlib import Path

UNIT_BYTES = int(os.environ["UNIT_BYTES"])
JOBS = 22
"""What ninja starts on a GB10, where nothing bounds it."""
SMALL = [0.9] * 24
LARGE = [10.4, 10.0, 9.7, 9.4, 8.7, 8.5, 8.4, 8.3, 8.2, 7.6, 7.3]
SMALL_SECONDS, LARGE_SECONDS = 0.2, float(os.environ.get("LARGE_SECONDS", "4"))
LOADED = 1.17
CACHE = Path("/root/.cache/flashinfer/0.6.12/121a/cached_ops/fused_moe_120")
CICC = """
import ctypes, mmap, sys, time
ctypes.CDLL(None).prctl(15, b"cicc", 0, 0, 0)
size, steps = int(sys.argv[1]) >> 12 << 12, 40
area = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
for step in range(steps):
    start, end = (size * at // steps >> 12 << 12 for at in (step, step + 1))
    area.madvise(23, start, end - start)  # MADV_POPULATE_WRITE
    time.sleep(float(sys.argv[2]) / steps)
"""
LINE = "(Worker pid=9) INFO 01-01 00:00:00 [gpu_model_runner.py:1] {}"


def say(text: str) -> None:
    print(LINE.format(text), flush=True)


def ninja(jobs: int) -> bool:
    """Whether all was compiled: as ninja, it starts no more after one has failed."""
    CACHE.mkdir(parents=True, exist_ok=True)
    sources = [(f"{name}_{number}.o", size) for name, sizes in (("small", SMALL), ("large", LARGE))
               for number, size in enumerate(sizes)]  # fmt: skip
    listed = "".join(f"\nbuild {name}: nvcc" for name, _ in sources)
    (CACHE / "build.ninja").write_text(f"{listed}\nbuild fused_moe_120.so: link\n")
    todo = [(CACHE / name, size) for name, size in sources if not (CACHE / name).exists()]
    running: dict[int, tuple[subprocess.Popen[bytes], Path]] = {}
    failed = False
    while running or (todo and not failed):
        while todo and not failed and len(running) < jobs:
            target, size = todo.pop(0)
            seconds = LARGE_SECONDS if size > 1 else SMALL_SECONDS
            command = [sys.executable, "-ISc", CICC, str(round(size * UNIT_BYTES)), str(seconds)]
            process = subprocess.Popen(command)
            running[process.pid] = process, target
        pid, status = os.wait()
        _, target = running.pop(pid)
        failed = failed or status != 0
        if not status:
            target.write_text("kernel")
    if not failed:
        (CACHE / "fused_moe_120.so").write_text("kernels")
    return not failed


def main(weights: float) -> None:
    say("Starting to load model tiny...")
    held = mmap.mmap(-1, round(weights * LOADED * UNIT_BYTES), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    held.madvise(23)
    say(f"Model loading took {weights} GiB memory and 1.0 seconds")
    if not (CACHE / "fused_moe_120.so").exists():
        jobs = JOBS if "UNBOUNDED" in os.environ else int(os.environ.get("MAX_JOBS", str(JOBS)))
        say(f"ninja -j {jobs}")
        if not ninja(jobs):
            sys.exit("RuntimeError: Ninja build failed. Ninja output: ninja: build stopped: subcommand failed.")
    serve = Path(__file__).with_name("endpoint_alike.py")
    sys.argv = [str(serve), "8000", "serving", "compiling", str(CACHE.parent)]
    runpy.run_path(str(serve), run_name="__main__")


main(float(os.environ["WEIGHTS"]))
