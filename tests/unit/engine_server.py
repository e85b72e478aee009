"""An HTTP server on loopback with the test's own answers."""

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

Reply = tuple[int, bytes]


def models(*names: str) -> Reply:
    return 200, json.dumps({"object": "list", "data": [{"id": name, "object": "model"} for name in names]}).encode()


def token() -> Reply:
    return 200, json.dumps({"choices": [{"text": "a"}], "usage": {"completion_tokens": 1}}).encode()


@contextmanager
def engine(reply: Callable[[str, str], Reply], *, slow_seconds: float = 0, address: str = "127.0.0.1") -> Iterator[int]:
    """Serve `reply(method and path, authorization)`; the port."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _answer(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length", "0")))
            time.sleep(slow_seconds)
            status, body = reply(f"{self.command} {self.path}", self.headers.get("Authorization", ""))
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_GET = do_POST = _answer  # noqa: N815 - the names that http.server calls

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            pass

    with serve(Handler, address) as port:
        yield port


@contextmanager
def serve(handler: type[BaseHTTPRequestHandler], address: str = "127.0.0.1") -> Iterator[int]:
    """Its port."""
    handler.disable_nagle_algorithm = True  # each answer is two writes: the second would wait 40 ms
    server = ThreadingHTTPServer((address, 0), handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
