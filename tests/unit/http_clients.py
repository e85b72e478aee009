"""The HTTP server on a free port, and its clients. Real sockets; addresses of 127/8 stand for sources."""

import asyncio
import gc
import os
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from tests.unit.clock import unstalled
from tests.unit.nodes import network

from sparkd.base.lib.http_connection import Handler, Limits, Request, Response
from sparkd.base.lib.http_server import HttpServer

GET = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"
BODY = b'{"schema": 1}'
LARGE = bytes(range(256)) * (64 << 10)
"""More than the kernel buffers for both ends."""
PATIENCE_SECONDS = 10.0
STRANGER, OTHER = "127.0.0.66", "127.0.0.2"


def get(path: str) -> bytes:
    return GET.replace(b"/", path.encode(), 1)


async def simple(request: Request) -> Response:
    """Answers by the path."""
    status = 401 if request.path == "/unsigned" else 200
    return Response(status, b"" if status == 401 else LARGE if request.path == "/large" else BODY)


class Holder:
    """Holds each request, except of /now and /unsigned, until `publish`, or for `hold_seconds`.

    `held` counts those, `left` those whose client left.
    """

    def __init__(self, hold_seconds: float = 60.0) -> None:
        self.held = self.left = 0
        self._hold_seconds = hold_seconds
        self._news = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None

    async def __call__(self, request: Request) -> Response:
        if request.path in ("/now", "/unsigned"):
            return await simple(request)
        self._loop = asyncio.get_running_loop()
        self.held += 1
        try:
            await asyncio.wait_for(self._news.wait(), self._hold_seconds)
        except TimeoutError:
            return Response(200, b"old")
        except asyncio.CancelledError:
            self.left += 1
            raise
        return Response(200, b"news")

    def publish(self) -> None:
        assert self._loop is not None
        self._loop.call_soon_threadsafe(self._news.set)


@contextmanager
def serving(
    handle: Handler = simple,
    admits: Callable[[str], bool] = lambda _: True,
    on_error: Callable[[str], object] = lambda _: None,
    find_user: Callable[[socket.socket], str] = lambda _: "",
    **limits: float,
) -> Iterator[HttpServer]:
    plenty = {"requests_per_second": 1e6, "burst": 10**6}
    bounds = Limits(**{**plenty, **limits})  # type: ignore[arg-type]  # numbers
    server = HttpServer("127.0.0.1", 0, handle, bounds, admits, on_error, find_user)
    with network() as loop:
        loop.spawn(server.serve())
        yield server


def connect(server: HttpServer, source: str = "127.0.0.1", data: bytes = b"") -> socket.socket:
    """A client that has sent `data`, as far as the server took it."""
    sock = socket.create_connection(("127.0.0.1", server.port), PATIENCE_SECONDS, (source, 0))
    with suppress(ConnectionError):
        sock.sendall(data)
    return sock


def answer(sock: socket.socket) -> tuple[int, bytes]:
    """One answer, by its Content-Length; status 0 where the connection was closed."""
    received = b""
    with suppress(ConnectionError):
        while b"\r\n\r\n" not in received:
            if not (more := sock.recv(1)):
                return 0, b""
            received += more
        length = next(int(line[15:]) for line in received.split(b"\r\n") if line.lower().startswith(b"content-length:"))
        body = b""
        while len(body) < length:
            if not (more := sock.recv(length - len(body))):
                return 0, b""
            body += more
        return int(received.split(b" ")[1]), body
    return 0, b""


def rest(sock: socket.socket) -> bytes:
    """All data until the connection is closed, which it must be."""
    data = bytearray()
    with suppress(ConnectionError):
        while more := sock.recv(1 << 20):
            data += more
    return bytes(data)


def fetch(server: HttpServer, data: bytes = GET, source: str = "127.0.0.1") -> tuple[int, bytes]:
    with connect(server, source, data) as sock:
        return answer(sock)


def descriptors() -> int:
    """Of this process, less those that earlier tests left to the garbage collector. Their threads may still close some:
    what counts is that none has been added.
    """
    gc.collect()
    return len(os.listdir("/proc/self/fd"))


@contextmanager
def flooding(flood: Callable[[], object], threads: int) -> Iterator[None]:
    """`flood` again and again in some threads; all have ended long before a client that waits does."""
    ended = threading.Event()

    def run() -> None:
        while not ended.is_set():
            # StopIteration: on loopback, a socket may connect to itself where no process listens any more.
            with suppress(OSError, StopIteration):
                flood()

    running = [threading.Thread(target=run) for _ in range(threads)]
    for client in running:
        client.start()
    try:
        yield
    finally:
        ended.set()
        began = unstalled()
        for client in running:
            client.join()
        assert unstalled() - began < PATIENCE_SECONDS / 2
