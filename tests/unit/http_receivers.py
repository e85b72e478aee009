"""A receiver of messages on this machine: real HTTP, over TLS where it has a certificate."""

import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path


@dataclass
class Receiver:
    url: str = ""
    status: int = 200
    most: int = 1000
    """Messages that it takes. Those after them get 500."""
    slow: bool = False
    """Sends a line of its answer each 0.1 s, without end."""
    headers: list[dict[str, str]] = field(default_factory=list)
    bodies: list[bytes] = field(default_factory=list)


@contextmanager
def receiver(certificate: Path | None = None, port: int = 0) -> Iterator[Receiver]:
    hook = Receiver()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            hook.headers.append(dict(self.headers))
            hook.bodies.append(self.rfile.read(int(self.headers["Content-Length"])))
            if hook.slow:
                self.wfile.write(b"HTTP/1.1 200 OK\r\n")
                with suppress(OSError):
                    for number in range(100):
                        self.wfile.write(f"X-{number}: x\r\n".encode())
                        time.sleep(0.1)
                return
            self.send_response(hook.status if len(hook.bodies) <= hook.most else 500)
            self.send_header("Location", "/elsewhere")
            self.end_headers()
            with suppress(OSError):
                self.wfile.write(b"x" * (4 << 20))  # an answer that nobody wants to read

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - its base's name
            """Nothing on stderr."""

    server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
    scheme = "http"
    if certificate is not None:
        scheme, context = "https", ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate)
        server.socket = context.wrap_socket(server.socket, server_side=True)
    hook.url = f"{scheme}://127.0.0.1:{server.server_port}/topic-that-is-secret?auth=abc"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield hook
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
