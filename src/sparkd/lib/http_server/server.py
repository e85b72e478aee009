"""Listens, accepts and makes room: which client gets a place, and how many requests a source may send."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from contextlib import suppress

from sparkd.lib.event_loop import EventLoop, ignore_error
from sparkd.lib.http_server.connection import Connection, make_config
from sparkd.lib.http_server.messages import Handler, Limits

BACKLOG = 1024
"""For listen(2): past it the kernel drops SYNs, and clients retry after 1 s."""
REST_SECONDS = 0.5
"""With no file descriptor left, a connection stays ready and cannot be accepted: to retry at once would spin."""
SOURCES_KEPT = 1024
"""Token buckets kept. Past it the one unused for longest goes, and that source begins with a full one."""
STRANGER = b"HTTP/1.1 401 Unauthorized\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"


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
        self.connections: dict[Connection, None] = {}
        """Those that hold a place, the oldest first."""
        self.buffer = memoryview(bytearray(limits.header_bytes + 1))
        self.config = make_config(limits)
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
