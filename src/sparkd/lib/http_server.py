"""The HTTP server that reports are read from: uvicorn's protocol, with bounds on all that a client can do to it.

uvicorn parses (h11), keeps connections alive and runs the handlers. Added here: admission by address, places for each
source, one deadline for a whole request and one for a whole answer, strict headers, and a bound on what is buffered.
"""

from __future__ import annotations

import asyncio
import socket
import sys
from collections.abc import Callable, Coroutine, Mapping, MutableMapping
from contextlib import suppress
from logging import CRITICAL, Logger
from typing import Any, NamedTuple

import h11

from sparkd.lib.event_loop import EventLoop, ignore_error
from sparkd.lib.imports import stub

with stub("uvicorn.main", "Server", "main", "run"):
    from uvicorn.config import Config
    from uvicorn.protocols.http.h11_impl import H11Protocol
    from uvicorn.server import ServerState

BACKLOG = 1024
"""For listen(2): past it the kernel drops SYNs, and clients retry after 1 s."""
REST_SECONDS = 0.5
"""With no file descriptor left, a connection stays ready and cannot be accepted: to retry at once would spin."""
SOURCES_KEPT = 1024
"""Token buckets kept. Past it the one unused for longest goes, and that source begins with a full one."""
STRANGER = b"HTTP/1.1 401 Unauthorized\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
SILENT = Logger("uvicorn", CRITICAL)
"""uvicorn logs each request that is not HTTP: a stranger could fill the journal."""


class Request(NamedTuple):
    """A GET without a body. `source`: the client's IP. `path` includes the query. Names of headers are lower-case."""

    source: str
    path: str
    headers: Mapping[str, str]


class Response(NamedTuple):
    status: int
    body: bytes = b""
    content_type: str = "application/json"
    headers: tuple[tuple[str, str], ...] = ()


Handler = Callable[[Request], Coroutine[Any, Any, Response]]
"""Runs in the loop's thread and must not block it. It may wait for news: a held request costs a socket and no thread.
It is cancelled when its client leaves."""


class Limits(NamedTuple):
    """The bounds of one server; those of a source are for all its connections together."""

    connections: int = 64
    per_source: int = 8
    header_bytes: int = 8192
    """Of a request line with its headers, and of what may wait behind a request that is held."""
    request_seconds: float = 5.0
    """For a whole request, from the connection or from the request's first byte: a slow drip cannot keep a place."""
    idle_seconds: float = 60.0
    """Between an answer and the next request."""
    handler_seconds: float = 10.0
    """For a handler to return, the time that it holds a request included."""
    answer_seconds: float = 5.0
    """For the client to take the whole answer."""
    requests_per_second: float | None = 20
    """None: not counted."""
    burst: int = 40


def allow_all(_source: str) -> bool:
    return True


def ignore(_trouble: str) -> None: ...


class HttpServer:
    """Listens from the start, answers from `start` to `close`.

    `admits`: whether an IP may connect at all; any other gets 401 and takes no place. `on_error` gets what went wrong,
    once while it stays the same, and `broken` the bug that ends the server, both in the loop's thread. Raises OSError
    where the address is not to be had.
    """

    def __init__(
        self,
        address: str,
        port: int,
        handle: Handler,
        limits: Limits = Limits(),  # noqa: B008 - frozen
        admits: Callable[[str], bool] = allow_all,
        on_error: Callable[[str], None] = ignore,
        broken: Callable[[BaseException], None] = ignore_error,
    ) -> None:
        self.handle = handle
        self.limits = limits
        self.state = ServerState()
        self.connections: dict[Connection, None] = {}
        """Those that hold a place, the oldest first."""
        self.buffer = memoryview(bytearray(limits.header_bytes + 1))
        self.config = Config(
            answer,
            ws="none",
            lifespan="off",
            interface="asgi3",
            log_config=None,
            access_log=False,
            proxy_headers=False,
            workers=1,  # else it is read from the environment
            timeout_keep_alive=limits.idle_seconds,  # type: ignore[arg-type]  # for call_later, which takes a float
            h11_max_incomplete_event_size=limits.header_bytes,
        )
        self._admits = admits
        self._on_error = on_error
        self._broken = broken
        self._reported = ""
        self._buckets: dict[str, tuple[float, float]] = {}
        """Of each source: the tokens left, and when that was."""
        self._listener = _listen(address, port)
        self.port: int = self._listener.getsockname()[1]
        self._loop: EventLoop | None = None
        self._serving: asyncio.Task[None] | None = None

    def start(self, loop: EventLoop) -> None:
        self._loop = loop
        loop.spawn(self._serve())

    def close(self) -> None:
        """Close every connection, answered or not, and the port. For any thread but the loop's; may come twice."""
        if self._loop is None:
            self._listener.close()
        else:
            self._loop.run(self._stop())

    def report(self, trouble: str) -> None:
        if trouble != self._reported:
            self._reported = trouble
            self._on_error(trouble)

    def take_token(self, source: str) -> bool:
        """Take one request out of the source's bucket; whether there was one in it, or requests are not counted."""
        if self.limits.requests_per_second is None:
            return True
        now = asyncio.get_running_loop().time()
        tokens, at = self._buckets.pop(source, (self.limits.burst, now))
        tokens = min(self.limits.burst, tokens + (now - at) * self.limits.requests_per_second)
        enough = tokens >= 1
        self._buckets[source] = (tokens - 1 if enough else tokens, now)
        if len(self._buckets) > SOURCES_KEPT:
            del self._buckets[next(iter(self._buckets))]
        return enough

    async def _serve(self) -> None:
        self._serving = asyncio.current_task()
        try:
            while True:
                await self._accept()
        except Exception as error:
            self.report(f"the server has ended: {type(error).__name__}: {error}")
            self._broken(error)
        finally:
            # Also after a bug: a client is then refused at once, and need not wait for silence.
            for connection in tuple(self.connections):
                connection.drop()
            await asyncio.sleep(0)  # the loop closes their sockets, and forgets the listener
            self._listener.close()

    async def _stop(self) -> None:
        if self._serving is not None:
            self._serving.cancel()
            await asyncio.wait((self._serving,))

    async def _accept(self) -> None:
        """Not by loop.create_server: a refused client costs no transport, and a turn of the loop accepts one."""
        loop = asyncio.get_running_loop()
        try:
            sock, peer = await loop.sock_accept(self._listener)
        except ConnectionAbortedError:
            return
        except OSError as error:
            self.report(f"no connection can be taken: {error.strerror}")
            await asyncio.sleep(REST_SECONDS)
            return
        source = str(peer[0])
        if not self._admits(source):
            with suppress(OSError):
                sock.send(STRANGER)
                sock.recv(1 << 16)  # with bytes unread the kernel would reset the connection, and the answer be lost
        elif await self._make_room(source):
            with suppress(OSError):
                await loop.connect_accepted_socket(lambda: Connection(self, source, sock), sock)
                return
        sock.close()
        await asyncio.sleep(0)

    async def _make_room(self, source: str) -> bool:
        """Whether there is a place for one more connection. Of those that hold all of a source's, the oldest that was
        never served goes: any user of a node can send from its address, and must not keep its agent out.
        """
        for turn in range(3):  # the loop learns which clients have left, and begins with the requests that have come
            own = [one for one in self.connections if one.source == source]
            if len(self.connections) < self.limits.connections:
                if len(own) < self.limits.per_source:
                    return True
                if turn == 2 and (oldest := next((one for one in own if not one.served), None)) is not None:
                    oldest.drop()
                    return True
            await asyncio.sleep(0)
        return False


class Connection(H11Protocol, asyncio.BufferedProtocol):
    """One connection of the server. As a BufferedProtocol it says how many bytes it takes at a time."""

    def __init__(self, server: HttpServer, source: str, sock: socket.socket) -> None:
        super().__init__(server.config, server.state, {"connection": self})
        self.logger = SILENT
        self.source = source
        self._server = server
        self._limits = server.limits
        self._socket = sock
        self._task: asyncio.Task[None] | None = None
        self._deadline: asyncio.TimerHandle | None = None
        self._awaited = ""
        self.served = False
        """Whether a handler holds a request of it, or has answered one with more than 401: where requests are signed,
        whether it is no stranger's."""

    @property
    def _busy(self) -> bool:
        """Whether a whole request has come and is not answered yet."""
        return self.cycle is not None and not self.cycle.response_complete

    def drop(self) -> None:
        """Close at once, and free the place."""
        self._server.connections.pop(self, None)
        self.transport.abort()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn's own
        self._server.connections[self] = None
        super().connection_made(transport)
        transport.set_write_buffer_limits(high=0)  # pause_writing as soon as the client has to take what is buffered
        self._set_deadline()
        # A client that means it has sent its request by now: it shows who it is before it could have to make room.
        received = b""
        with suppress(OSError):
            received = self._socket.recv(len(self._server.buffer))
        if received:
            self.data_received(received)

    def connection_lost(self, exc: Exception | None) -> None:
        self._server.connections.pop(self, None)
        if self._deadline is not None:
            self._deadline.cancel()
        super().connection_lost(exc)
        if self._task is not None:
            self._task.cancel()
        self.app_state.clear()  # it refers to this connection

    def get_buffer(self, _size_hint: int) -> memoryview:
        return self._server.buffer[: self._limits.header_bytes + 1 - len(self.conn.trailing_data[0])]

    def buffer_updated(self, size: int) -> None:
        self.data_received(bytes(self._server.buffer[:size]))

    def eof_received(self) -> None:
        """A client that closes its sending half while its request is held is taken for one that has left."""
        if not self.flow.write_paused:
            self._server.connections.pop(self, None)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._set_deadline()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._set_deadline()

    def handle_events(self) -> None:
        if not self._busy:
            super().handle_events()
            self.flow.resume_reading()  # uvicorn pauses behind a request, and would not see that the client leaves
        elif len(self.conn.trailing_data[0]) > self._limits.header_bytes:
            self.drop()
        self._set_deadline()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._set_deadline()

    def send_400_response(self, _msg: str) -> None:
        """uvicorn calls this while it handles h11's error, which knows the status."""
        error = sys.exception()
        self._refuse(error.error_status_hint if isinstance(error, h11.RemoteProtocolError) else 400)

    async def answer(self) -> None:
        """Answer the request at hand."""
        self._task = asyncio.current_task()
        await self.flow.drain()  # one answer is buffered at most
        status = self._fault()
        if status is None and not self._server.take_token(self.source):
            status = 429
        if status is not None:
            self._refuse(status)
            return
        served, self.served = self.served, True  # for as long as the handler waits
        try:
            response = await self._handled()
            self.served = served or response.status != 401
            head = h11.Response(
                status_code=response.status,
                headers=[
                    ("Content-Type", response.content_type),
                    ("Content-Length", str(len(response.body))),
                    ("Cache-Control", "no-store"),
                    *response.headers,
                ],
            )
        except Exception as error:
            # A bug in what makes one answer must not make the node fall silent, which would end a serving engine.
            self.served = served
            self._server.report(f"a request was answered with 500: {type(error).__name__}: {error}")
            self._refuse(500)
            return
        self._send(head, response.body)

    def _fault(self) -> int | None:
        """The status to refuse the request with; None where it is good."""
        if self.scope["method"] != "GET":
            return 405
        names = [name for name, _ in self.headers]
        if b"transfer-encoding" in names or any(n == b"content-length" and v.strip(b"0") for n, v in self.headers):
            return 413
        # Of two values, two programs may read another one each.
        return 400 if len(set(names)) < len(names) or not self.scope["raw_path"].startswith(b"/") else None

    async def _handled(self) -> Response:
        path, query = self.scope["raw_path"], self.scope["query_string"]
        target = path + b"?" + query if query else path
        headers = {name.decode("ascii"): value.decode("latin-1") for name, value in self.headers}
        try:
            async with asyncio.timeout(self._limits.handler_seconds) as deadline:
                return await self._server.handle(Request(self.source, target.decode("ascii"), headers))
        except TimeoutError:
            if deadline.expired():
                raise RuntimeError("no answer in time") from None
            raise

    def _refuse(self, status: int) -> None:
        """Answer with a bare status, and close."""
        headers = [("Content-Length", "0"), ("Connection", "close")]
        if status == 405:
            headers.append(("Allow", "GET"))
        self._send(h11.Response(status_code=status, headers=headers), b"")

    def _send(self, head: h11.Response, body: bytes) -> None:
        """In one packet where it fits into one, which ASGI's two messages never do."""
        events = (head, h11.Data(data=body), h11.EndOfMessage())
        self.transport.write(b"".join(self.conn.send(event) or b"" for event in events))
        if self.conn.our_state is h11.MUST_CLOSE:
            with suppress(OSError):
                self._socket.recv(1 << 16)  # with bytes unread the kernel would reset the connection
            self.transport.close()
        if self._busy:
            self.cycle.response_started = self.cycle.response_complete = True
            self.on_response_complete()

    def _set_deadline(self) -> None:
        """Begin the time for what this connection waits for, where that has changed; uvicorn closes an idle one."""
        if self.flow.write_paused:
            awaited, seconds = "answer", self._limits.answer_seconds
        elif not self._busy and (self.cycle is None or self.conn.trailing_data[0]):
            awaited, seconds = "request", self._limits.request_seconds
        else:
            awaited, seconds = "", 0.0
        if awaited != self._awaited:
            self._awaited = awaited
            if self._deadline is not None:
                self._deadline.cancel()
            self._deadline = self.loop.call_later(seconds, self.drop) if awaited else None


async def answer(scope: MutableMapping[str, Any], _receive: object, _send: object) -> None:
    """The ASGI application: the connection itself answers."""
    connection: Connection = scope["state"]["connection"]
    await connection.answer()


def _listen(address: str, port: int) -> socket.socket:
    """Raises OSError."""
    numeric = socket.AI_NUMERICHOST | socket.AI_NUMERICSERV
    family, kind, protocol, _, place = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM, flags=numeric)[0]
    sock = socket.socket(family, kind, protocol)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        sock.setblocking(False)
        sock.bind(place)
        sock.listen(BACKLOG)
    except OSError:
        sock.close()
        raise
    return sock
