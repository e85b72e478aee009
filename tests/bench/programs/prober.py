"""Runs in the node: when could the endpoint first complete a prompt? Knows nothing of sparkd.

prober.py first PORT SECONDS     one-token completions, as fast as every 20 ms, until one succeeds: its stamp
prober.py load PORT SECONDS      one completion of a few tokens a second, for that long: how many succeeded
"""

from __future__ import annotations

import http.client
import json
import sys
import time

KNOCK_SECONDS = 0.02
LOAD_SECONDS = 1.0
ANSWER_SECONDS = 30.0


def complete(port: int, tokens: int) -> bool:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=ANSWER_SECONDS)
    body = json.dumps({"model": "tiny", "prompt": "1", "max_tokens": tokens, "temperature": 0})
    try:
        connection.request("POST", "/v1/completions", body, {"Content-Type": "application/json"})
        answer = connection.getresponse()
        text = answer.read()
        return answer.status == 200 and json.loads(text)["usage"]["completion_tokens"] >= 1
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def first(port: int, seconds: float) -> dict[str, float]:
    """Stamp of the first success, on CLOCK_MONOTONIC."""
    deadline = time.monotonic() + seconds
    next_at = time.monotonic()
    while time.monotonic() < deadline:
        if complete(port, 1):
            return {"at": time.monotonic()}
        next_at = max(next_at + KNOCK_SECONDS, time.monotonic())
        time.sleep(max(0.0, next_at - time.monotonic()))
    return {}


def load(port: int, seconds: float) -> dict[str, float]:
    began = time.monotonic()
    sent = succeeded = 0
    while (due := began + sent * LOAD_SECONDS) < began + seconds:
        time.sleep(max(0.0, due - time.monotonic()))
        sent += 1
        succeeded += complete(port, 8)
    return {"sent": sent, "succeeded": succeeded}


if __name__ == "__main__":
    print("knocking", flush=True)
    what, port, seconds = sys.argv[1:]
    print(json.dumps((first if what == "first" else load)(int(port), float(seconds))), flush=True)
