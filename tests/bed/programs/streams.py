"""Runs in a node: so many clients that stream completions, one after the other, until this process gets a line.

streams.py CLIENTS TOKENS     then says as JSON how many requests there were, and what was wrong with which
"""

from __future__ import annotations

import http.client
import json
import sys
import threading

SECONDS = 240.0
"""Behind a prefill of minutes."""


def stream(tokens: int) -> str:
    """One completion; what was wrong with it, or nothing."""
    client = http.client.HTTPConnection("127.0.0.1", 8000, timeout=SECONDS)
    body = {"model": "tiny", "prompt": "hello", "max_tokens": tokens, "ignore_eos": True, "stream": True}
    wanted = {**body, "stream_options": {"include_usage": True}}
    made, ended = 0, False
    try:
        client.request("POST", "/v1/completions", json.dumps(wanted), {"Content-Type": "application/json"})
        answer = client.getresponse()
        for line in answer:
            if line.startswith(b"data: {"):
                usage = json.loads(line[6:]).get("usage")
                made = usage["completion_tokens"] if usage else made
            ended = ended or line.startswith(b"data: [DONE]")
    except (OSError, http.client.HTTPException) as error:
        return f"{type(error).__name__}: {error}"
    finally:
        client.close()
    return "" if (answer.status, made, ended) == (200, tokens, True) else f"{answer.status}: {made} of {tokens} tokens"


def main(clients: int, tokens: int) -> None:
    over, results = threading.Event(), list[str]()

    def work() -> None:
        while not over.is_set():
            results.append(stream(tokens))

    threads = [threading.Thread(target=work) for _ in range(clients)]
    for thread in threads:
        thread.start()
    sys.stdin.readline()
    over.set()
    for thread in threads:
        thread.join()
    print(json.dumps({"requests": len(results), "wrong": [one for one in results if one]}))


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
