"""A small world with a real kernel: own processes, own /dev/shm, own /run. What is made in it is gone with it.

`run(code)` runs Python in it as PID 1, so that orphans are adopted there, and gives what it printed as JSON.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from shutil import rmtree
from tempfile import mkdtemp

REPOSITORY = Path(__file__).parents[2]
MOUNTS = "mount -t tmpfs shm /dev/shm && mount -t tmpfs -o mode=755 run /run"
UNSHARE = ("unshare", "--fork", "--pid", "--mount-proc", "--mount", "--net", "--kill-child")


def run(code: str, timeout_seconds: float = 60) -> object:
    """Raises AssertionError with its output where the code fails."""
    script = f'{MOUNTS} && ip link set lo up && exec "$@"'
    done = subprocess.run(
        [*UNSHARE, "sh", "-c", script, "sh", sys.executable, "-B", "-c", code],
        cwd=REPOSITORY,
        env={"PATH": os.environ["PATH"], "PYTHONPATH": f"{REPOSITORY}/src:{REPOSITORY}"},
        capture_output=True,
        text=True,
        timeout=timeout_seconds,
    )
    if done.returncode:
        raise AssertionError(f"exit code {done.returncode}\n{done.stdout}\n{done.stderr}")
    return json.loads(done.stdout)


@contextmanager
def open_folder() -> Iterator[Path]:
    """One that everybody gets into: pytest's own is closed again by each other run of it."""
    folder = Path(mkdtemp(prefix="sparkd-owners-"))
    folder.chmod(0o755)
    try:
        yield folder
    finally:
        rmtree(folder)
