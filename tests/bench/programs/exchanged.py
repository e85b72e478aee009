"""What one exchange of a report costs each side, in a network namespace of its own: one line of JSON, a Cost.

exchanged.py FINDINGS RUNS KEY_FILE     a report with so many findings
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from contextlib import ExitStack
from dataclasses import asdict, dataclass

EXCHANGES = 20
"""Of one run: a second of them, at the pace of a reader."""
ADDRESS = "127.0.0.1"
HOLD_SECONDS = 5.0


@dataclass(frozen=True)
class Cost:
    report_bytes: int
    wire_bytes: float
    """Of an exchange, headers of every layer and acknowledgements included."""
    requests_seconds: tuple[float, ...]
    """CPU of the requesting loop: to sign, to request, to verify and to parse the answer."""
    answers_seconds: tuple[float, ...]


def measured(findings: int, runs: int, key_file: str) -> Cost:
    from tests.bench.programs.node import context, usual
    from tests.bench.programs.simulated import traffic
    from tests.unit.nodes import network

    from sparkd.agent.cluster.client import Source
    from sparkd.agent.cluster.peer_api import PeerApi
    from sparkd.agent.cluster.peer_reader import PeerReader
    from sparkd.agent.daemon.assembly import initial_status
    from sparkd.base.cluster.auth import KeyRing
    from sparkd.base.host import Host
    from sparkd.base.lib.http_server import HttpServer
    from sparkd.base.status.model import dump

    report = usual(initial_status(context(2, 0, key_file), Host(), os.urandom(16).hex()), findings)
    text = dump(report)
    keys = KeyRing(Host().files, key_file).keys
    peer_api = PeerApi(ADDRESS, keys, HOLD_SECONDS)
    peer_api.publish(text.encode())
    server = HttpServer(ADDRESS, 0, peer_api.handle)
    read = threading.Semaphore(0)
    reader = PeerReader(Source(0, ADDRESS, server.port, ADDRESS, HOLD_SECONDS), keys, read.release)
    running = ExitStack()
    own = running.enter_context(network())
    own.spawn(server.serve())
    running.enter_context(network()).spawn(reader.run())
    count = 0

    def exchanges(number: int) -> None:
        """Each new report is requested, and answered, once the one before has been read."""
        nonlocal count
        for _ in range(number):
            if not read.acquire(timeout=HOLD_SECONDS):
                raise SystemExit("no report was read")
            count += 1
            own.call(peer_api.publish, text.replace("loading weights", f"loading weight{count:05}", 1).encode())

    exchanges(EXCHANGES)  # warm
    # The loop that answers was started first.
    loops = [thread.ident or 0 for thread in threading.enumerate() if thread.name == "event-loop"]
    clocks = [time.pthread_getcpuclockid(ident) for ident in loops]
    requests, answers = [], []
    before = traffic().bytes
    for _ in range(runs):
        began = [time.clock_gettime(clock) for clock in clocks]
        exchanges(EXCHANGES)
        answering, requesting = (time.clock_gettime(clock) - start for clock, start in zip(clocks, began, strict=True))
        requests.append(requesting / EXCHANGES)
        answers.append(answering / EXCHANGES)
    wire = (traffic().bytes - before) / (runs * EXCHANGES)
    return Cost(len(text), round(wire), tuple(requests), tuple(answers))


if __name__ == "__main__":
    print(json.dumps(asdict(measured(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]))))
