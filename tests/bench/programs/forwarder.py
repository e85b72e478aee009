"""Runs in the node: a container's log on the way that the agent sends it, with the package's own code, to stdout.

forwarder.py CONTAINER     reads to the end of the container, then says on stderr what it took
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator

from sparkd.engine.forward import Forwarder
from sparkd.engine.log_reader import LogReader
from sparkd.host import Host, docker
from sparkd.lib.journal import Journal
from sparkd.lib.log import events
from sparkd.lib.redact import Redactor

POLL_SECONDS = 0.1
END_SECONDS = 120.0


def main(container: str) -> None:
    host = Host()

    def follow(since: float) -> Iterator[tuple[int, bytes]]:
        client = docker.client()
        try:
            yield from docker.follow_log(host, client, container, since)
        finally:
            client.close()

    journal = Journal(sys.stdout.fileno())
    redact = Redactor(("a-key-that-is-looked-for",))
    log = LogReader(follow, Forwarder(redact, "127.0.0.1"), journal.put, events(journal.put, redact), lambda: None)
    log.start()
    asker = docker.client()
    while docker.exit_code(asker, container) is None:
        time.sleep(POLL_SECONDS)
    asker.close()
    log.stop(END_SECONDS)
    journal.close(END_SECONDS)
    print(json.dumps({"cpu_seconds": time.process_time()}), file=sys.stderr)


if __name__ == "__main__":
    main(sys.argv[1])
