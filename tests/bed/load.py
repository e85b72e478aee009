"""Requests that run while a test does something."""

from __future__ import annotations

import json
import re
import signal

from .node import Node
from .processes import wait_for

SCRIPT = "/root/load.sh"
LONGEST_SECONDS = 120
RUNNING = re.compile(r"^vllm:num_requests_running\{.*\} [1-9]", re.MULTILINE)


def begin(node: Node) -> None:
    """Returns when requests are seen to run."""
    # Four at a time, again and again: the engine counts a request as running only after its first step.
    body = json.dumps({"model": "tiny", "prompt": "x", "max_tokens": 500, "ignore_eos": True})
    post = f"curl -s -m 60 -H 'Content-Type: application/json' -d '{body}' http://127.0.0.1:8000/v1/completions"
    node.write(SCRIPT, f"while sleep 0.1; do for i in 1 2 3 4; do {post} & done; wait; done\n")
    node.sh(f"setsid timeout {LONGEST_SECONDS} sh {SCRIPT} >/dev/null 2>&1 &")
    wait_for(lambda: bool(RUNNING.search(node.http(8000, "/metrics").body)), 20, "requests to run")


def end(node: Node) -> None:
    """Returns when none of it is left."""

    def gone() -> bool:
        found = node.found(rf"{SCRIPT}|^curl -s -m 60")
        for process in found:
            process.send(signal.SIGKILL)
        return not found

    wait_for(gone, 10, "the requests to end")
