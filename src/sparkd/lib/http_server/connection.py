"""One connection: uvicorn's protocol, with deadlines, strict headers and a bound on what is buffered."""

from __future__ import annotations

import asyncio
import socket
import sys
from collections.abc import MutableMapping
from contextlib import suppress
from logging import CRITICAL, Logger
from typing import TYPE_CHECKING, Any

import h11

from sparkd.lib.http_server.messages import Limits, Request, Response
from sparkd.lib.imports import stub

with stub("uvicorn.main", "Server", "main", "run"):
    from uvicorn.config import Config
    from uvicorn.protocols.http.h11_impl import H11Protocol
    from uvicorn.server import ServerState

if TYPE_CHECKING:
    from sparkd.lib.http_server.server import HttpServer

SILENT = Logger("uvicorn", CRITICAL)
"""uvicorn logs each request that is not HTTP: a stranger could fill the journal."""


class Connection(H11Protocol, asyncio.BufferedProtocol):
    """One connection of the server. As a BufferedProtocol it says how many bytes it takes at a time."""

    def __init__(self, server: HttpServer, source: str, sock: socket.socket) -> None:
        super().__init__(server.config, ServerState(), {"connection": self})
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


def make_config(limits: Limits) -> Config:
    return Config(
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
