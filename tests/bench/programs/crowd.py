"""PID 1 of a PID namespace: fills it with real processes, and looks for strays among them. All end with it.

crowd.py RUNS SIZE...     one line of JSON for each size: how long the check took, with the plan's port free and held

Every one of them is named `python`, as a `vllm serve` may be: the check reads the arguments of each, its worst case.
"""

from __future__ import annotations

import gc
import json
import os
import signal
import socket
import sys
import time
import traceback
from typing import NoReturn

PORT = 8000


def grow(count: int) -> None:
    gc.freeze()  # a collection in a child would copy all of its memory
    for _ in range(count):
        if os.fork() == 0:
            while True:
                signal.pause()


def scan(runs: int) -> NoReturn:
    """In a child, so that what is imported here is not copied into the next of the crowd."""
    try:
        print(json.dumps(timed(runs)), flush=True)
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(0)


def timed(runs: int) -> dict[str, list[float] | int]:
    from sparkd.agent.preflight.check import Level
    from sparkd.agent.preflight.checks.ports import Ports, WantedPort
    from sparkd.agent.preflight.checks.stray_workers import StrayWorkers
    from sparkd.base.host import Host

    strays, ports, host = StrayWorkers(), Ports((WantedPort(PORT, "", "the API", "args.port"),)), Host()
    strays.run(host)  # imports, and names of users, once
    ports.run(host)
    free, held = [], []
    scanned = 0
    for _ in range(runs):
        began = time.perf_counter()
        facts, verdict = strays.run(host)
        no_holder = ports.run(host)[1]
        free.append(time.perf_counter() - began)
        assert verdict.level is no_holder.level is Level.OK, f"{verdict.reason}; {no_holder.reason}"
        scanned = facts.scanned
    with socket.create_server(("", PORT)):
        for _ in range(runs):
            began = time.perf_counter()
            strays.run(host)
            verdict = ports.run(host)[1]
            held.append(time.perf_counter() - began)
            assert verdict.level is Level.BLOCK and f"pid {os.getpid()}" in verdict.reason, verdict.reason
    return {"scanned": scanned, "free": free, "held": held}


def main(runs: int, sizes: list[int]) -> None:
    made = 0
    for size in sizes:
        grow(size - made)
        made = size
        scanner = os.fork()
        if scanner == 0:
            scan(runs)
        os.waitpid(scanner, 0)


if __name__ == "__main__":
    main(int(sys.argv[1]), [int(word) for word in sys.argv[2:]])
