"""Runs in the node: a container's log on the way that the agent sends it, with the package's own code, to stdout.

forwarder.py CONTAINER     reads to the end of the container, then says on stderr what it took
"""

from __future__ import annotations

import json
import sys
import time
from contextlib import closing
from functools import partial

from sparkd.agent.engine.log_reader import LogReader
from sparkd.base.host import Host, docker
from sparkd.base.lib.journal_writer import Journal
from sparkd.base.lib.log import events
from sparkd.base.lib.redaction import Redaction
from sparkd.base.lib.redactor import Redactor
from sparkd.base.vllm.log_lines import LogForwarder

POLL_SECONDS = 0.1
END_SECONDS = 120.0


def main(container: str) -> None:
    host = Host()
    journal = Journal(sys.stdout.fileno())
    redact = Redactor(("a-key-that-is-looked-for",))
    log = LogReader(
        partial(docker.follow_log, host, container),
        LogForwarder(redact, "127.0.0.1"),
        journal.put,
        events(journal.put, Redaction()),
        lambda: None,
    )
    log.start()
    with closing(host.docker_reader()) as reader:
        while docker.exit_code(reader, container) is None:
            time.sleep(POLL_SECONDS)
    log.stop(END_SECONDS)
    journal.close(END_SECONDS)
    print(json.dumps({"cpu_seconds": time.process_time()}), file=sys.stderr)


if __name__ == "__main__":
    main(sys.argv[1])
