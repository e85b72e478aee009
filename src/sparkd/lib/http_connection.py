"""One connection to the HTTP server: uvicorn's protocol, with bounds on all that a client can do to it.

uvicorn parses (h11), keeps connections alive and runs the handler. Added here: one deadline for a whole request and one
for a whole answer, strict headers, and a bound on what is buffered.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from logging import CRITICAL, Logger
from typing import TYPE_CHECKING, Any, NamedTuple

import h11

from sparkd.lib.imports import stub

with stub("uvicorn.main", "Server", "main", "run"):
    from uvicorn.config import Config
    from uvicorn.protocols.http.h11_impl import H11Protocol
    from uvicorn.server import ServerState

if TYPE_CHECKING:
    from sparkd.lib.http_server import HttpServer

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
    requests_per_second: float = 20.0
    """math.inf: no bound."""
    burst: int = 40


class Connection(H11Protocol, asyncio.BufferedProtocol):
    """As a BufferedProtocol it says how many bytes it takes at a time."""

    def __init__(self, server: HttpServer) -> None:
        super().__init__(server.config, ServerState(), {"connection": self})
        self.logger = SILENT
        self.source = ""
        self.served = False
        """Whether a handler holds a request of it, or has answered one with more than 401: where requests are signed,
        whether it is no stranger's."""
        self._server = server
        self._limits = server.limits
        self._task: asyncio.Task[None] | None = None
        self._deadline: asyncio.TimerHandle | None = None
        self._awaited = ""

    @property
    def _busy(self) -> bool:
        """Whether a whole request has come and is not answered yet."""
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
        if not self._server.admits(self.source):
            self._refuse(401)
        elif not self._server.take_place(self):
            self.drop()

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

    def send_400_response(self, _msg: str) -> None:
        """uvicorn calls this while it handles h11's error, which knows the status."""
        error = sys.exception()
        self._refuse(error.error_status_hint if isinstance(error, h11.RemoteProtocolError) else 400)

    async def answer(self) -> None:
        """Answer the request at hand."""
        self._task = asyncio.current_task()
        await self.flow.drain()  # one answer is buffered at most
        if (fault := self._fault()) is not None:
            self._refuse(fault)
            return
        served, self.served = self.served, True  # for as long as the handler waits
        try:
            response = await self._handled()
            self.served = served or response.status != 401
            self._send(response)
        except Exception as error:
            # A bug in what makes one answer must not make the node fall silent, which would end a serving engine.
            self.served = served
            self._server.report(f"a request was answered with 500: {type(error).__name__}: {error}")
            self._refuse(500)

    def _fault(self) -> int | None:
        """The status to refuse the request with; None where it is good."""
        if self not in self._server.connections:
            return 401  # a bug in `admits`, which asyncio logs
        if self.scope["method"] != "GET":
            return 405
        names = [name for name, _ in self.headers]
        if b"transfer-encoding" in names or any(n == b"content-length" and v.strip(b"0") for n, v in self.headers):
            return 413
        # Of two values, two programs may read another one each.
        if len(set(names)) < len(names) or not self.scope["raw_path"].startswith(b"/"):
            return 400
        return None if self._server.take_token(self.source) else 429

    async def _handled(self) -> Response:
        target = b"?".join(part for part in (self.scope["raw_path"], self.scope["query_string"]) if part)
        headers = {name.decode("ascii"): value.decode("latin-1") for name, value in self.headers}
        try:
            async with asyncio.timeout(self._limits.handler_seconds):
                return await self._server.handle(Request(self.source, target.decode("ascii"), headers))
        except TimeoutError:
            raise RuntimeError("no answer in time") from None

    def _refuse(self, status: int) -> None:
        """Answer with a bare status, and close."""
        allow = (("Allow", "GET"),) if status == 405 else ()
        self._send(Response(status, headers=(("Connection", "close"), *allow)))

    def _send(self, response: Response) -> None:
        """In one packet where it fits into one, which ASGI's two messages never do."""
        headers = [
            ("Content-Type", response.content_type),
            ("Content-Length", str(len(response.body))),
            ("Cache-Control", "no-store"),
            *response.headers,
        ]
        head = h11.Response(status_code=response.status, headers=headers)
        events = (head, h11.Data(data=response.body), h11.EndOfMessage())
        self.transport.write(b"".join(self.conn.send(event) or b"" for event in events))
        if self.conn.our_state is h11.MUST_CLOSE:
            with suppress(OSError):  # with bytes unread the kernel would reset the connection, and the answer be lost
                os.read(self.transport.get_extra_info("socket").fileno(), 1 << 16)
            self.transport.close()
        if self._busy:
            self.cycle.response_started = self.cycle.response_complete = True
            self.on_response_complete()
        self._set_deadline()

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


def make_config(limits: Limits) -> Config:
    return Config(
        lambda scope, *_: scope["state"]["connection"].answer(),
        interface="asgi3",
        ws="none",
        log_config=None,
        proxy_headers=False,
        workers=1,  # else it is read from the environment
        timeout_keep_alive=limits.idle_seconds,  # type: ignore[arg-type]  # for call_later, which takes a float
        h11_max_incomplete_event_size=limits.header_bytes,
    )
