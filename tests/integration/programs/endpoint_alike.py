"""A container's init: it loads for ever, or serves vLLM's API. SIGUSR1: it logs an error; SIGUSR2: it ends by itself.

python -I -S endpoint_alike.py PORT loading|serving [deaf|slow]: deaf to SIGTERM, or it ends a second after it.
python -I -S endpoint_alike.py PORT serving shares LATE NAME...: a child of it makes these segments and has them mapped,
the first once it gets SIGUSR1.
python -I -S endpoint_alike.py PORT serving compiling FOLDER: it computes in batches, and compiles a kernel for each new
number of requests, of splits by its tokens, and way of sampling, as one that is kept in FOLDER says. SIGUSR1: it closes
its port, and ends later.
python -I -S endpoint_alike.py PORT serving prefill: a child of it, VLLM::EngineCor, processes prompts `WAY SECONDS`
alone, one after the other: it sleeps, burns CPU, or does that in pieces of two seconds that fill the KV cache.
"""

from __future__ import annotations

import json
import mmap
import os
import signal
import sys
import threading
import time
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

LOADS = "(EngineCore pid=9) INFO 01-01 00:00:00 [gpu_model_runner.py:1] Starting to load model tiny...\n"
STARTED = "(APIServer pid=1) INFO:     Application startup complete.\n"
BOOM = "(EngineCore pid=9) ERROR 01-01 00:00:00 [core.py:1] RuntimeError: boom\n"
PR_SET_PDEATHSIG, PR_SET_NAME = 1, 15
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


MODEL = {"id": "tiny", "object": "model", "max_model_len": 4096}
COMPILING = {
    "GET /v1/models": json.dumps({"object": "list", "data": [MODEL]}),
    "POST /tokenize": json.dumps({"tokens": list(range(100, 140)), "count": 40}),
    "POST /v1/completions": json.dumps(
        {"choices": [{"text": "a", "finish_reason": "length"}], "usage": {"completion_tokens": 1, "prompt_tokens": 1}}
    ),
}
JIT = "(Worker_TP0 pid=9) WARNING 01-01 00:00:00 [jit_monitor.py:134] TileLang JIT compilation during inference: {}.\n"
STEP_SECONDS, MOST_REQUESTS, BATCH_TOKENS, SPLITS, TILE = 0.005, 8, 2048, 48, 64


class Request:
    def __init__(self, body: dict[str, object]) -> None:
        prompt = body.get("prompt", "")
        self.tokens = len(prompt) if isinstance(prompt, list) else len(str(prompt).split())
        """Of the next step."""
        self.left = int(str(body.get("max_tokens", 1)))
        self.way = "drawn" if body.get("temperature") else "greedy"
        self.done = threading.Event()


class Engine:
    """Batches that requests join and leave, as vLLM's. `folder`: of the kernels that are compiled."""

    def __init__(self, folder: str) -> None:
        self.folder, self.loaded = folder, set[str]()
        self.waiting: list[Request] = []
        self.arrived = threading.Condition()
        threading.Thread(target=self.run, daemon=True).start()

    def answer(self, body: dict[str, object]) -> None:
        request = Request(body)
        with self.arrived:
            self.waiting.append(request)
            self.arrived.notify()
        request.done.wait()

    def run(self) -> None:
        batch: list[Request] = []
        while True:
            with self.arrived:
                while not (self.waiting or batch):
                    self.arrived.wait()
                room = MOST_REQUESTS - len(batch)
                batch, self.waiting = [*batch, *self.waiting[:room]], self.waiting[room:]
            time.sleep(STEP_SECONDS)
            splits = max(1, SPLITS // -(-min(BATCH_TOKENS, sum(request.tokens for request in batch)) // TILE))
            for kernel in {f"mhc_{splits}", f"batch_{len(batch)}", *(f"sample_{request.way}" for request in batch)}:
                self.load(kernel)
            for request in batch:
                request.tokens, request.left = 1, request.left - 1
                if not request.left:
                    request.done.set()
            batch = [request for request in batch if request.left]

    def load(self, kernel: str) -> None:
        """As Triton's, its hook also reports what comes from the disk."""
        if kernel not in self.loaded:
            self.loaded.add(kernel)
            with open(f"{self.folder}/{kernel}.so", "a") as file:
                file.write("kernel")
            write(JIT.format(kernel))


class Prefill:
    """An engine whose core is a process of its own, and whose metrics change at the end of a step."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.running, self.pieces = 0, 0
        self.sent, self.answers = os.pipe(), os.pipe()
        if not os.fork():
            import ctypes  # whose library the image for arm64 lacks

            prctl = ctypes.CDLL(None).prctl
            prctl(PR_SET_NAME, b"VLLM::EngineCor", 0, 0, 0)
            prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
            self.compute()

    def compute(self) -> None:
        while words := os.read(self.sent[0], 100).split():
            way, seconds = words[0], float(words[1])
            end = time.monotonic() + seconds
            if way == b"sleep":
                time.sleep(seconds)
            while (left := end - time.monotonic()) > 0:
                if way == b"pieces" and int(left + 2) // 2 != int(left - 0.01 + 2) // 2:
                    os.write(self.answers[1], b".")
                    time.sleep(0.02)
            os.write(self.answers[1], b"!")

    def answer(self, prompt: str) -> None:
        if prompt.partition(" ")[0] not in ("sleep", "burn", "pieces"):
            prompt = "sleep 0.01"
        with self.lock:
            self.running = 1
            os.write(self.sent[1], prompt.encode())
            while os.read(self.answers[0], 1) == b".":
                self.pieces += 1
            self.running = 0

    def metrics(self) -> str:
        page = BODIES["GET /metrics"].replace("requests_running 0", f"requests_running {self.running}")
        return f"{page}vllm:kv_cache_usage_perc {self.pieces / 1000}\n"


class Handler(BaseHTTPRequestHandler):
    engine: Engine | None = None
    prefill: Prefill | None = None
    protocol_version = "HTTP/1.1"
    wbufsize = 1 << 16  # head and body are one segment

    def handle_request(self) -> None:
        sent = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        call = f"{self.command} {self.path}"
        body = {**BODIES, **COMPILING}.get(call) if self.engine else BODIES.get(call)
        if self.engine and call == "POST /v1/completions":
            self.engine.answer(json.loads(sent))
        if self.prefill and call == "POST /v1/completions":
            self.prefill.answer(json.loads(sent)["prompt"])
        if self.prefill and call == "GET /metrics":
            body = self.prefill.metrics()
        self.send_response(404 if body is None else 200)
        self.send_header("Content-Length", str(len(body or "")))
        self.end_headers()
        self.wfile.write((body or "").encode())

    do_GET = do_POST = handle_request  # noqa: N815 - the names that http.server calls

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        pass


def write(text: str) -> None:
    os.write(1, text.encode())


def dies(server: ThreadingHTTPServer) -> None:
    """As vLLM's API server where its engine has died: first the port, then the process."""
    server.socket.close()
    for descriptor in os.listdir("/proc/self/fd"):
        if int(descriptor) > 2:
            with suppress(OSError):
                os.close(int(descriptor))
    time.sleep(3)
    os._exit(0)


def share(late: str, *names: str) -> None:
    if os.fork():
        return
    areas = []

    def make(name: str) -> None:
        with open(f"/dev/shm/{name}", "wb+") as file:
            file.truncate(4096)
            areas.append(mmap.mmap(file.fileno(), 4096))

    signal.signal(signal.SIGUSR1, lambda _number, _frame: make(late))
    for name in names:
        make(name)
    while areas:
        time.sleep(60)


def main(port: int, *words: str) -> None:
    signal.signal(signal.SIGUSR1, lambda _number, _frame: write(BOOM))
    signal.signal(signal.SIGUSR2, lambda _number, _frame: os._exit(1))
    if "deaf" in words:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if "slow" in words:
        signal.signal(signal.SIGALRM, lambda _number, _frame: os._exit(0))
        signal.signal(signal.SIGTERM, lambda _number, _frame: signal.alarm(1))
    if "shares" in words:
        share(*words[words.index("shares") + 1 :])
    write(LOADS)
    if "compiling" in words:
        write(LOADS.replace("EngineCore", "Worker_TP0"))
        Handler.engine = Engine(words[-1])
    if "prefill" in words:
        Handler.prefill = Prefill()
    if "serving" in words:
        server = ThreadingHTTPServer(("0.0.0.0", port), Handler)
        server.daemon_threads, server.request_queue_size = True, 64
        if "compiling" in words:
            signal.signal(signal.SIGUSR1, lambda _number, _frame: dies(server))
        write(STARTED)
        server.serve_forever()
    while True:
        time.sleep(60)


if __name__ == "__main__":
    main(int(sys.argv[1]), *sys.argv[2:])
