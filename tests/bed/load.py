"""Requests that run while a test does something."""

import json
import re
import signal

from .node import Node
from .processes import wait_for

SENT_AT = "/root/sent-at"
SCRIPT = "/root/load.sh"
LONGEST_SECONDS = 120
RUNNING = re.compile(r"^vllm:num_requests_running\{.*\} [1-9]", re.MULTILINE)


def post(tokens: int) -> str:
    body = json.dumps({"model": "tiny", "prompt": "x", "max_tokens": tokens, "ignore_eos": True})
    return f"curl -s -m 60 -H 'Content-Type: application/json' -d '{body}' http://127.0.0.1:8000/v1/completions"


def send_once(node: Node) -> None:
    """One request that nobody waits for."""
    node.sh(f"date +%s.%N > {SENT_AT}; setsid {post(4)} >/dev/null 2>&1 &")


def sent_at(node: Node) -> float:
    """The time of `send_once`."""
    return float(node.read(SENT_AT))


def begin(node: Node) -> None:
    """Returns when requests are seen to run."""
    # Four at a time, again and again: the engine counts a request as running only after its first step.
    node.write(SCRIPT, f"while sleep 0.1; do for i in 1 2 3 4; do {post(500)} & done; wait; done\n")
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
