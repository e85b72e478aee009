"""A stand-in for a rank under sparkd's own guard: guarded.py FLOOR_MIB PROGRAM [ARGUMENT...].

It is the init of a pid namespace, as a container has one, and a child of it runs the program, in Python. At the end
one line of JSON says how it ended.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import time
from pathlib import Path

sys.path[:0] = ["/usr/lib/sparkd/app", "/usr/lib/sparkd/vendor"]
from sparkd.agent.engine.memory_guard.guard import MemoryGuard  # noqa: E402  # only here can it be found
from sparkd.base.lib.errors import MemoryGuardError  # noqa: E402

ACCOUNT_SECONDS = 5.0


class Heard:
    """What the guard says."""

    def __init__(self) -> None:
        self.events: list[str] = []

    def info(self, event: str, **fields: object) -> None:
        self.events.append(event)

    warning = info
    error = info


def main() -> None:
    floor_mib, program = int(sys.argv[1]), shlex.join(sys.argv[2:])
    heard = Heard()
    command = ["unshare", "--pid", "--fork", "sh", "-c", f"read go; python3 -S {program} & wait"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, text=True) as rank:
        pidfd = os.pidfd_open(_child(rank.pid))
        guard = MemoryGuard(floor_mib << 20, pidfd, heard, lambda: None)
        guard.start()
        while not heard.events:
            time.sleep(0.01)
        rank.communicate("go\n", timeout=300)
    deadline = time.monotonic() + ACCOUNT_SECONDS
    while not guard.over.is_set() and time.monotonic() < deadline:
        time.sleep(0.01)
    killed: MemoryGuardError | None = None
    try:
        guard.raise_if_killed()
    except MemoryGuardError as error:
        killed = error
    guard.close()
    os.close(pidfd)
    print(json.dumps({"caught": killed is not None, "event": killed.reason if killed else heard.events[0]}), flush=True)


def _child(pid: int) -> int:
    while True:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        if children:
            return int(children[0])
        time.sleep(0.01)


main()
