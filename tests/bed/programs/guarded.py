"""Stand-ins for a rank, one after another, that eat memory under sparkd's own guard: guarded.py FLOOR_MIB PACE RUNS.

Each is the init of a pid namespace, as a container has one, and a child of it eats. One JSON object a run.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

sys.path[:0] = ["/usr/lib/sparkd/app", "/usr/lib/sparkd/vendor"]
from sparkd.guard.guard import Guard  # noqa: E402  # only here can it be found
from sparkd.host import Host, oom  # noqa: E402

EATER = Path(__file__).with_name("eater.py")
SETTLED = 0.95
"""Of what was available at first, before the next one may eat."""


class Heard:
    """What the guard says."""

    def __init__(self) -> None:
        self.events: list[str] = []

    def info(self, event: str, **fields: object) -> None:
        self.events.append(event)

    warning = info
    error = info


def run(host: Host, floor_mib: int, pace: str) -> dict[str, object]:
    before = oom.kills(host.files) or 0
    command = ["unshare", "--pid", "--fork", "sh", "-c", f"read go; python3 -S {EATER} {pace} & wait"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, text=True) as rank:
        pidfd = os.pidfd_open(_child(rank.pid))
        heard = Heard()
        guard = Guard(floor_mib << 20, pidfd, heard, lambda: None)
        guard.stand()
        while not heard.events:
            time.sleep(0.01)
        rank.communicate("go\n", timeout=120)
    deadline = time.monotonic() + 5
    while not guard.over and time.monotonic() < deadline:
        time.sleep(0.01)
    killed = guard.killed
    guard.close()
    os.close(pidfd)
    return {
        "guarded": heard.events[0],
        "caught": killed is not None,
        "kernel_killed": (oom.kills(host.files) or 0) - before,
        "said": killed.reason if killed else "",
    }


def _child(pid: int) -> int:
    while True:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        if children:
            return int(children[0])
        time.sleep(0.01)


def main() -> None:
    floor_mib, pace, runs = int(sys.argv[1]), sys.argv[2], int(sys.argv[3])
    host = Host()
    available = host.meminfo().available_bytes
    for _ in range(runs):
        while host.meminfo().available_bytes < SETTLED * available:
            time.sleep(0.05)
        print(json.dumps(run(host, floor_mib, pace)), flush=True)


main()
