"""An HTTP server for small GETs, which limits connections and requests by source, and by user where that is known."""

import asyncio
import os
import socket
from collections.abc import Callable, Iterable

from sparkd.base.lib.http_connection import Connection, Handler, Limits

BACKLOG = 1024
"""The backlog of listen(2): past it the kernel drops SYNs, and clients retry after 1 s."""
ACCEPTED_PER_TURN = 1
"""A flood of connections delays no request, and a connection's data is handled before it may be dropped for another.
With no file descriptor left, asyncio pauses for 1 s, and logs that once per connection of a turn."""


class HttpServer:
    """Listens from the start, and answers while `serve` runs.

    `admits`: whether an IP may connect; any other gets 401 and takes no place. `find_user`: which user of a source has
    the connection, where several share an address. `on_error` gets a handler's bug, once while it stays the same, in
    the loop's thread. Raises OSError where it cannot listen on the address.
    """

    def __init__(
        self,
        address: str,
        port: int,
        handle: Handler,
        limits: Limits = Limits(),  # noqa: B008 - frozen
        admits: Callable[[str], bool] = lambda _: True,
        on_error: Callable[[str], object] = lambda _: None,
        find_user: Callable[[socket.socket], str] = lambda _: "",
    ) -> None:
        self.handle = handle
        self.limits = limits
        self.admits = admits
        self.find_user = find_user
        self.connections: dict[Connection, None] = {}
        self.buffer = memoryview(bytearray(limits.header_bytes + 1))
        self.config = limits.config()
        self._on_error = on_error
        self._reported = ""
        self._due: dict[str, float] = {}
        """Time of the next request at an even rate, by owner."""
        self._listener = _listen(address, port)
        self.port: int = self._listener.getsockname()[1]

    def report(self, trouble: str) -> None:
        """Call `on_error`, once while the trouble stays the same."""
        if trouble != self._reported:
            self._reported = trouble
            self._on_error(trouble)

    def take_token(self, owner: str) -> bool:
        """Whether the owner may send one more request now (GCRA)."""
        now = asyncio.get_running_loop().time()
        due = max(now, self._due.pop(owner, now))
        is_allowed = due - now <= (self.limits.burst - 1) / self.limits.requests_per_second
        self._due[owner] = due + (1 / self.limits.requests_per_second if is_allowed else 0.0)
        if len(self._due) > 1024:  # the source that was counted longest ago starts again with a full burst
            del self._due[next(iter(self._due))]
        return is_allowed

    def take_place(self, connection: Connection) -> bool:
        """Whether there is a place for the connection.

        Where its owner, or the server, is at the limit, the oldest of those connections that was never served is
        dropped: a stranger must not keep others out, nor any user of a node its agent.
        """
        of_owner = [other for other in self.connections if other.owner == connection.owner]
        competitors: Iterable[Connection] = of_owner if len(of_owner) >= self.limits.per_source else ()
        if not competitors and len(self.connections) >= self.limits.connections:
            competitors = self.connections
        if competitors:
            oldest = next((other for other in competitors if not other.served), None)
            if oldest is None:
                return False
            oldest.drop()
        self.connections[connection] = None
        return True

    async def serve(self) -> None:
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
            for _ in range(4):  # turns: one just accepted takes its place two turns later, and is closed in a third
                for connection in tuple(self.connections):
                    connection.drop()
                await asyncio.sleep(0)
            server.close()  # only now: asyncio leaves a connection open that it accepts as the server closes


def _listen(address: str, port: int) -> socket.socket:
    """A listening socket. Raises OSError."""
    numeric = socket.AI_NUMERICHOST | socket.AI_NUMERICSERV
    family, *_, place = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM, flags=numeric)[0]
    try:
        return socket.create_server(place, family=family, backlog=BACKLOG)
    except OSError as error:
        raise OSError(error.errno, os.strerror(error.errno or 0)) from None  # without Python's addition
