"""One connection of the HTTP server: uvicorn's protocol, with bounds on what a client can use.

uvicorn parses (h11), keeps connections alive and runs the handler. Added here: a deadline for a whole request and one
for a whole answer, strict headers, and a bound on buffers.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from logging import CRITICAL, Logger
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple

import h11

from sparkd.base.lib import without

with without("uvicorn.main", stand_in=SimpleNamespace(Server=None, main=None, run=None)):
    from uvicorn.config import Config
    from uvicorn.protocols.http.h11_impl import H11Protocol
    from uvicorn.server import ServerState

if TYPE_CHECKING:
    from sparkd.base.lib.http_server import HttpServer

SILENT = Logger("uvicorn", CRITICAL)
"""uvicorn logs each request that is not HTTP: any client could fill the journal."""


class Request(NamedTuple):
    """A GET without a body. `source`: the client's IP. `path` includes the query. Names of headers are lower-case.

    `challenge`: random, the same for all requests of one connection.
    """

    source: str
    path: str
    headers: Mapping[str, str]
    challenge: str = ""


class Response(NamedTuple):
    status: int
    body: bytes = b""
    content_type: str = "application/json"
    headers: tuple[tuple[str, str], ...] = ()


Handler = Callable[[Request], Coroutine[Any, Any, Response]]
"""Runs in the loop's thread and must not block it. It may wait, and is cancelled when its client leaves."""


class Limits(NamedTuple):
    """Bounds of one server; those of a source hold for all its connections, or for those of each of its users."""

    connections: int = 64
    per_source: int = 8
    header_bytes: int = 8192
    """Size of a request line with its headers, and of data buffered behind a request that waits."""
    request_seconds: float = 5.0
    """Time for a whole request, from the connection or from its first byte: a slow client cannot keep a place."""
    idle_seconds: float = 60.0
    """Time between an answer and the next request."""
    handler_seconds: float = 10.0
    answer_seconds: float = 5.0
    """Time for the client to take the whole answer."""
    requests_per_second: float = 20.0
    """math.inf: no bound."""
    burst: int = 40

    def config(self) -> Config:
        return Config(
            lambda scope, *_: scope["state"]["connection"].answer(),
            interface="asgi3",
            ws="none",
            log_config=None,
            proxy_headers=False,
            workers=1,  # else it is read from the environment
            timeout_keep_alive=self.idle_seconds,  # type: ignore[arg-type]  # for call_later, which takes a float
            h11_max_incomplete_event_size=self.header_bytes,
        )


class Connection(H11Protocol, asyncio.BufferedProtocol):
    """One connection. As a BufferedProtocol it limits the bytes of one read.

    `owner`: the source, or one of its users. `served`: whether a handler works on a request of it, or has answered one
    other than with 401. Where requests are signed, the client of such a connection has the key.
    """

    def __init__(self, server: HttpServer) -> None:
        super().__init__(server.config, ServerState(), {"connection": self})
        self.logger = SILENT
        self.source = self.owner = ""
        self.served = False
        self.challenge = os.urandom(16).hex()
        self._server = server
        self._limits = server.limits
        self._deadline: asyncio.TimerHandle | None = None
        self._awaited = ""

    @property
    def _is_busy(self) -> bool:
        """Whether a whole request was received and is not answered yet."""
        return self.cycle is not None and not self.cycle.response_complete

    def drop(self) -> None:
        """Close at once, and free the place."""
        self._server.connections.pop(self, None)
        self.transport.abort()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn's own
        super().connection_made(transport)
        transport.set_write_buffer_limits(high=0)  # pause_writing as soon as the client has to take what is buffered
        self._set_deadline()
        self.source = str(transport.get_extra_info("peername")[0])
        # A user of this machine has 2^24 source addresses in 127/8, and is one owner with all of them.
        self.owner = self._server.find_user(transport.get_extra_info("socket")) or self.source
        if not self._server.admits(self.source):
            self._refuse(401)
        elif not self._server.take_place(self):
            self.drop()

    def connection_lost(self, exc: Exception | None) -> None:
        self._server.connections.pop(self, None)
        if self._deadline is not None:
            self._deadline.cancel()
        super().connection_lost(exc)
        for task in self.tasks:
            task.cancel()
        self.app_state.clear()  # it refers to this connection

    def get_buffer(self, _size_hint: int) -> memoryview:
        return self._server.buffer[: self._limits.header_bytes + 1 - len(self.conn.trailing_data[0])]

    def buffer_updated(self, size: int) -> None:
        self.data_received(bytes(self._server.buffer[:size]))

    def resume_writing(self) -> None:
        super().resume_writing()
        self._set_deadline()

    def handle_events(self) -> None:
        if not self._is_busy:
            super().handle_events()
            self.flow.resume_reading()  # uvicorn pauses behind a request, and would not see that the client leaves
        elif len(self.conn.trailing_data[0]) > self._limits.header_bytes:
            self.drop()
        self._set_deadline()

    def send_400_response(self, _msg: str) -> None:
        """uvicorn calls this while it handles h11's error, which knows the status."""
        error = sys.exception()
        self._refuse(error.error_status_hint if isinstance(error, h11.RemoteProtocolError) else 400)

    async def answer(self) -> None:
        await self.flow.drain()  # one answer is buffered at most
        if (status := self._find_refusal()) is not None:
            self._refuse(status)
            return
        was_served, self.served = self.served, True  # for as long as the handler waits
        try:
            response = await self._handle()
            self.served = was_served or response.status != 401
            self._send(response)
        except asyncio.CancelledError:
            self.drop()  # uvicorn would answer with a page of its own
            raise
        except Exception as error:
            # A bug in one handler must not silence the node, which would end a serving engine.
            self.served = was_served
            self._server.report(f"a request was answered with 500: {type(error).__name__}: {error}")
            self._refuse(500)

    def _find_refusal(self) -> int | None:
        """Status of a refusal; None for a good request."""
        names = [name for name, _ in self.headers]
        if self not in self._server.connections:
            return 401  # a bug in `admits`, which asyncio logs
        if self.scope["method"] != "GET":
            return 405
        if b"transfer-encoding" in names or any(
            name == b"content-length" and value.strip(b"0") for name, value in self.headers
        ):
            return 413
        # Two programs may read different values of a header that is sent twice.
        if len(set(names)) < len(names) or not self.scope["raw_path"].startswith(b"/"):
            return 400
        return None if self._server.take_token(self.owner) else 429

    async def _handle(self) -> Response:
        target = b"?".join(part for part in (self.scope["raw_path"], self.scope["query_string"]) if part)
        headers = {name.decode("ascii"): value.decode("latin-1") for name, value in self.headers}
        try:
            async with asyncio.timeout(self._limits.handler_seconds):
                return await self._server.handle(Request(self.source, target.decode("ascii"), headers, self.challenge))
        except TimeoutError:
            raise RuntimeError("no answer in time") from None

    def _refuse(self, status: int) -> None:
        allow = (("Allow", "GET"),) if status == 405 else ()
        self._send(Response(status, headers=(("Connection", "close"), *allow)))

    def _send(self, response: Response) -> None:
        """Send it in one write: ASGI's two messages would be two packets."""
        usual = {"Content-Type": response.content_type, "Content-Length": str(len(response.body))}
        headers = [*usual.items(), ("Cache-Control", "no-store"), *response.headers]
        head = h11.Response(status_code=response.status, headers=headers)
        events = (head, h11.Data(data=response.body), h11.EndOfMessage())
        self.transport.write(b"".join(self.conn.send(event) or b"" for event in events))
        if self.conn.our_state is h11.MUST_CLOSE:
            with suppress(OSError):  # with bytes unread the kernel would reset the connection, and the answer be lost
                os.read(self.transport.get_extra_info("socket").fileno(), 1 << 16)
            self.transport.close()
        if self._is_busy:
            self.cycle.response_started = self.cycle.response_complete = True
            self.on_response_complete()
        self._set_deadline()

    def _set_deadline(self) -> None:
        """Restart the timer when this connection waits for something else; uvicorn closes an idle one."""
        awaited, seconds = "", 0.0
        if self.flow.write_paused:
            awaited, seconds = "answer", self._limits.answer_seconds
        elif not self._is_busy and (self.cycle is None or self.conn.trailing_data[0]):
            awaited, seconds = "request", self._limits.request_seconds
        if awaited != self._awaited:
            self._awaited = awaited
            if self._deadline is not None:
                self._deadline.cancel()
            self._deadline = self.loop.call_later(seconds, self.drop) if awaited else None
