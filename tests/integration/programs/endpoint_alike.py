"""A container's init: it loads for ever, or serves vLLM's API. SIGUSR1: it logs an error; SIGUSR2: it ends by itself.

python -I -S endpoint_alike.py PORT loading|serving [deaf|slow]: deaf to SIGTERM, or it ends a second after it.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

LOADS = "(EngineCore pid=9) INFO 01-01 00:00:00 [gpu_model_runner.py:1] Starting to load model tiny...\n"
STARTED = "(APIServer pid=1) INFO:     Application startup complete.\n"
BOOM = "(EngineCore pid=9) ERROR 01-01 00:00:00 [core.py:1] RuntimeError: boom\n"
COUNTERS = (
    "num_requests_running",
    "num_requests_waiting",
    "prompt_tokens_total",
    "generation_tokens_total",
    "iteration_tokens_total_count",
)
BODIES = {
    "GET /health": "",
    "GET /v1/models": json.dumps({"object": "list", "data": [{"id": "tiny", "object": "model"}]}),
    "GET /metrics": "".join(f"\nvllm:{name} 0.0" for name in COUNTERS) + "\n",
    "POST /v1/completions": json.dumps({"choices": [{"text": "a"}], "usage": {"completion_tokens": 1}}),
}


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def handle_request(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        body = BODIES.get(f"{self.command} {self.path}")
        self.send_response(404 if body is None else 200)
        self.send_header("Content-Length", str(len(body or "")))
        self.end_headers()
        self.wfile.write((body or "").encode())

    do_GET = do_POST = handle_request  # noqa: N815 - the names that http.server calls

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        pass


def write(text: str) -> None:
    os.write(1, text.encode())


def main(port: int, *words: str) -> None:
    signal.signal(signal.SIGUSR1, lambda _number, _frame: write(BOOM))
    signal.signal(signal.SIGUSR2, lambda _number, _frame: os._exit(1))
    if "deaf" in words:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if "slow" in words:
        signal.signal(signal.SIGALRM, lambda _number, _frame: os._exit(0))
        signal.signal(signal.SIGTERM, lambda _number, _frame: signal.alarm(1))
    write(LOADS)
    if "serving" in words:
        server = ThreadingHTTPServer(("0.0.0.0", port), Handler)
        server.daemon_threads = True
        write(STARTED)
        server.serve_forever()
    while True:
        time.sleep(60)


if __name__ == "__main__":
    main(int(sys.argv[1]), *sys.argv[2:])
