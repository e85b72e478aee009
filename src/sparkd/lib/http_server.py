"""An HTTP server for small GETs: which client gets a place, and how many requests a source may send."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable

from sparkd.lib.event_loop import EventLoop
from sparkd.lib.http_connection import Connection, Handler, Limits, make_config

BACKLOG = 1024
"""For listen(2): past it the kernel drops SYNs, and clients retry after 1 s."""
ACCEPTED_PER_TURN = 1
"""A turn of the loop accepts one connection: a flood delays nobody's request, and before a connection has to make room
for as many as a source may have, the loop has read and handled what it sent. With no file descriptor left asyncio
pauses for 1 s, and logs that as many times."""
SOURCES_KEPT = 1024
"""Past it the source that was counted longest ago is forgotten, and begins with a full burst."""


class HttpServer:
    """Listens from the start, answers from `start` to `close` or the loop's end.

    `admits`: whether an IP may connect at all; any other gets 401 and takes no place. `on_error` gets a handler's
    bug, once while it stays the same, in the loop's thread. Raises OSError where the address is not to be had.
    """

    def __init__(
        self,
        address: str,
        port: int,
        handle: Handler,
        limits: Limits = Limits(),  # noqa: B008 - frozen
        admits: Callable[[str], bool] = lambda _: True,
        on_error: Callable[[str], object] = lambda _: None,
    ) -> None:
        self.handle = handle
        self.limits = limits
        self.admits = admits
        self.connections: dict[Connection, None] = {}
        """Those that hold a place, the oldest first."""
        self.buffer = memoryview(bytearray(limits.header_bytes + 1))
        self.config = make_config(limits)
        self._on_error = on_error
        self._reported = ""
        self._due: dict[str, float] = {}
        """Of each source: when its next request would be due, were they sent evenly."""
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
        """Whether the source may send one more request now (GCRA)."""
        now = asyncio.get_running_loop().time()
        due = max(now, self._due.pop(source, now))
        enough = due - now <= (self.limits.burst - 1) / self.limits.requests_per_second
        self._due[source] = due + enough / self.limits.requests_per_second
        if len(self._due) > SOURCES_KEPT:
            del self._due[next(iter(self._due))]
        return enough

    def take_place(self, connection: Connection) -> bool:
        """Whether there is a place for it. Of those that hold all of a source's, the oldest that was never served
        goes: any user of a node can send from its address, and must not keep its agent out.
        """
        own = [one for one in self.connections if one.source == connection.source]
        if len(own) >= self.limits.per_source:
            oldest = next((one for one in own if not one.served), None)
            if oldest is None:
                return False
            oldest.drop()
        if len(self.connections) >= self.limits.connections:
            return False
        self.connections[connection] = None
        return True

    async def _serve(self) -> None:
        self._serving = asyncio.current_task()
        loop = asyncio.get_running_loop()
        server = await loop.create_server(
            lambda: Connection(self), sock=self._listener, backlog=ACCEPTED_PER_TURN, start_serving=False
        )
        try:
            await server.start_serving()
            self._listener.listen(BACKLOG)  # asyncio takes one number for both
            await loop.create_future()
        finally:
            loop.remove_reader(self._listener)
            for _ in range(4):  # turns: one that was just accepted takes its place two later, and is closed in a third
                for connection in tuple(self.connections):
                    connection.drop()
                await asyncio.sleep(0)
            server.close()  # only now: asyncio forgets, open, what it has just accepted for a closed one

    async def _stop(self) -> None:
        if self._serving is not None:
            self._serving.cancel()
            await asyncio.wait((self._serving,))


def _listen(address: str, port: int) -> socket.socket:
    """Raises OSError."""
    numeric = socket.AI_NUMERICHOST | socket.AI_NUMERICSERV
    family, *_, place = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM, flags=numeric)[0]
    try:
        return socket.create_server(place, family=family, backlog=BACKLOG)
    except OSError as error:
        raise OSError(error.errno, os.strerror(error.errno or 0)) from None  # without Python's words behind
