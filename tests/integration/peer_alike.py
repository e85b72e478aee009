"""A stand-in for another node's sparkd: it serves signed reports, from a network namespace of its own."""

import ctypes
import os
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from hashlib import sha256
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

from msgspec.structs import replace
from tests.unit.nodes import KEY, report

from sparkd.base.cluster import auth
from sparkd.base.status.model import NodeReport, dump

CLONE_NEWNET = 0x40000000
HOLD_SECONDS = 5.0


class PeerAlike:
    """Rank 1, on `address`. Nothing is served before the first `publish`."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.report: NodeReport = report(1)
        self._body = b""
        self._published = threading.Condition()

    def publish(self, **changes: object) -> None:
        with self._published:
            self.report = replace(self.report, **changes)
            self._body = dump(self.report).encode()
            self._published.notify_all()

    def body(self, known: str) -> bytes:
        """The report, at once where it is not the known one."""

        def is_news() -> bool:
            return sha256(self._body).hexdigest() != known

        with self._published:
            self._published.wait_for(is_news, HOLD_SECONDS)
            return self._body


def listen_in(pid: int, address: str, port: int) -> socket.socket:
    """A listening socket in the network namespace of a process."""
    listeners: list[socket.socket] = []

    def enter() -> None:  # a thread has a namespace of its own
        fd = os.open(f"/proc/{pid}/ns/net", os.O_RDONLY)
        try:
            if ctypes.CDLL(None, use_errno=True).setns(fd, CLONE_NEWNET) == 0:
                listeners.append(socket.create_server((address, port)))
        finally:
            os.close(fd)

    thread = threading.Thread(target=enter)
    thread.start()
    thread.join()
    return listeners[0]


@contextmanager
def serving(peer: PeerAlike, listener: socket.socket) -> Iterator[None]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def setup(self) -> None:
            super().setup()
            self.challenge = auth.new_nonce()

        def do_GET(self) -> None:
            nonce, path = self.headers.get(auth.NONCE_HEADER, ""), self.path
            wanted = auth.sign_request(KEY, self.challenge, nonce, peer.address, path)
            if not auth.signatures_match(wanted, self.headers.get(auth.SIGNATURE_HEADER, "")):
                self.answer(401, b"", auth.CHALLENGE_HEADER, self.challenge)
                return
            url = urlsplit(path)
            body = peer.body(parse_qs(url.query).get("known", [""])[0]) if url.path == "/report" else b""
            status = 200 if body else 404
            signature = auth.sign_answer(KEY, nonce, peer.address, path, status, body)
            self.answer(status, body, auth.SIGNATURE_HEADER, signature)

        def answer(self, status: int, body: bytes, header: str, value: str) -> None:
            self.send_response(status)
            self.send_header(header, value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def handle(self) -> None:
            with suppress(OSError):  # a reader that has gone
                super().handle()

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            pass

    server = ThreadingHTTPServer((peer.address, 0), Handler, bind_and_activate=False)
    server.socket.close()
    server.socket, server.daemon_threads, server.block_on_close = listener, True, False
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
