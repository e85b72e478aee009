"""The HTTP server that reports are read from: GET only, one thread, and bounds on all that a client can do to it.

A handler may hold a request back until there is news: a held request costs a socket and no thread.
"""

from __future__ import annotations

import selectors
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress

from sparkd.report.bell import Bell
from sparkd.report.http_connection import Connection, Gone, Limits, Request, Response, State, finish
from sparkd.report.http_quota import Quota

__all__ = ["Handler", "Limits", "Request", "Response", "Server"]

Handler = Callable[[Request, bool], Response | None]
"""Called in the server's thread with the request, and whether it must answer now. None: ask again when the bell rings,
or when the time to hold is over."""

BACKLOG = 1024
"""For what comes while others have the processor: past it the kernel drops, and who meant it tries again in 1 s."""
ACCEPTS = 32
"""Connections taken in before those that are open have their turn."""
REST_SECONDS = 0.5
"""With no file descriptor left, a connection stays ready and can't be taken: asking again at once would spin."""
STRANGER = b"HTTP/1.1 401 Unauthorized\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"


def everyone(_source: str) -> bool:
    return True


def nowhere(_trouble: str) -> None:
    """Tell nobody."""


def nobody(_error: BaseException) -> None:
    """Is told."""


class Server:
    """Listens from the start, answers from `start` to `close`. `ring` and `close` may be called from any thread.

    `admits` says of an IP whether it may ask at all: who may not, gets 401 and takes nobody's place. `on_error` gets
    what went wrong, in the server's thread, once while it stays the same; `broken` gets the bug that this thread dies
    of. Raises OSError where the address is not to be had.
    """

    def __init__(
        self,
        address: str,
        port: int,
        handle: Handler,
        limits: Limits = Limits(),  # noqa: B008 - frozen
        admits: Callable[[str], bool] = everyone,
        on_error: Callable[[str], None] = nowhere,
        broken: Callable[[BaseException], None] = nobody,
    ) -> None:
        self._handle = handle
        self._limits = limits
        self._admits = admits
        self._on_error = on_error
        self._broken = broken
        self._told = ""
        self._quota = Quota(limits.per_source, limits.requests_per_second, limits.burst)
        self._connections: dict[Connection, None] = {}
        """A set, the oldest first."""
        self._listener = _listen(address, port)
        self.port: int = self._listener.getsockname()[1]
        self._rested_at: float | None = None
        """When to listen again; None while it listens."""
        self._bell = Bell()
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._selector.register(self._bell.fd, selectors.EVENT_READ)
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="reports", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def ring(self) -> None:
        """Have every held request looked at again."""
        self._bell.ring()

    def close(self) -> None:
        """Close every connection, answered or not, and the port."""
        self._closing = True
        self._bell.ring()
        if self._thread.ident is None:
            self._end()
        else:
            self._thread.join()

    def _run(self) -> None:
        try:
            while not self._closing:
                self._round()
        except BaseException as error:  # whoever relies on this server must know
            self._tell(f"the server has ended: {type(error).__name__}: {error}")
            self._broken(error)
        finally:
            # Also where a bug ends the thread: who asks then is refused at once, and need not wait for silence.
            self._end()

    def _end(self) -> None:
        for connection in tuple(self._connections):
            self._drop(connection)
        self._listener.close()
        self._selector.close()
        self._bell.close()

    def _round(self) -> None:
        ready = self._selector.select(self._seconds_left())
        now = time.monotonic()
        rung = called = False
        for key, _ in ready:
            if isinstance(key.data, Connection):
                self._on_socket(key.data, now)
            elif key.fd == self._bell.fd:
                rung = self._bell.heard()
            else:
                called = True
        if called:  # after those that have left, whose places are free now
            self._accept(now)
        for connection in tuple(self._connections):
            overdue = connection.deadline <= now
            if connection.state is State.HELD and (rung or overdue):
                self._go_on(connection, now, held=True, expired=overdue)
            elif overdue:
                self._drop(connection)
        if self._rested_at is not None and self._rested_at <= now:
            self._rested_at = None
            self._selector.register(self._listener, selectors.EVENT_READ)

    def _seconds_left(self) -> float | None:
        """Until something must be done; None where nothing must."""
        times = [connection.deadline for connection in self._connections]
        if self._rested_at is not None:
            times.append(self._rested_at)
        return max(0.0, min(times) - time.monotonic()) if times else None

    def _accept(self, now: float) -> None:
        for _ in range(ACCEPTS):
            try:
                sock, peer = self._listener.accept()
            except (BlockingIOError, ConnectionAbortedError):
                return
            except OSError as error:
                self._tell(f"no connection can be taken: {error.strerror}")
                self._selector.unregister(self._listener)
                self._rested_at = now + REST_SECONDS
                return
            if self._welcome(sock, str(peer[0]), now):
                return  # a client that is answered may leave: its place is to be free for the next one

    def _welcome(self, sock: socket.socket, source: str, now: float) -> bool:
        """Give it a place if there is one; whether a request had come with it, and was taken."""
        sock.setblocking(False)
        if not self._admits(source):
            with suppress(OSError):
                sock.send(STRANGER)
            finish(sock)
        elif len(self._connections) >= self._limits.connections or not self._enter(source):
            sock.close()
        else:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection = Connection(sock, source, self._limits, now)
            self._connections[connection] = None
            self._selector.register(sock, selectors.EVENT_READ, connection)
            # Whoever means it has sent its request by now, and shows who it is before it could have to make room.
            self._on_socket(connection, now)
            return connection.known
        return False

    def _enter(self, source: str) -> bool:
        """A place for one more connection. Of those that hold all of a source's, the oldest that nobody knows goes: any
        user of a node can send from its address, and must not keep its agent out.
        """
        if self._quota.enter(source):
            return True
        oldest = next((one for one in self._connections if one.source == source and not one.known), None)
        if oldest is None:
            return False
        self._drop(oldest)
        return self._quota.enter(source)

    def _on_socket(self, connection: Connection, now: float) -> None:
        try:
            if connection.state is not State.ANSWERING:
                connection.receive(now)
        except Gone:
            self._drop(connection)
            return
        if connection.state is not State.HELD:
            self._go_on(connection, now)

    def _go_on(self, connection: Connection, now: float, *, held: bool = False, expired: bool = False) -> None:
        """Bring a connection to where it has to wait: for its client, or for news."""
        try:
            if held:
                self._ask(connection, expired, now)
            while connection.state is not State.HELD and connection.advance(now) is not None:
                if self._quota.spend(connection.source, now):
                    self._ask(connection, False, now)
                else:
                    connection.refuse(429, now)
        except Gone:
            self._drop(connection)
            return
        sending = connection.state is State.ANSWERING
        wanted = selectors.EVENT_WRITE if sending else selectors.EVENT_READ
        self._selector.modify(connection.socket, wanted, connection)

    def _ask(self, connection: Connection, expired: bool, now: float) -> None:
        try:
            response = self._handle(connection.request, expired)
            if response is not None:
                connection.answer(response, now)
            elif expired:
                raise RuntimeError("no answer in time")
            else:
                connection.hold(now)
        except Exception as error:
            # A bug in what makes one answer must not make the node fall silent, which would end a serving engine.
            self._tell(f"a request was answered with 500: {type(error).__name__}: {error}")
            connection.refuse(500, now)

    def _tell(self, trouble: str) -> None:
        if trouble != self._told:
            self._told = trouble
            self._on_error(trouble)

    def _drop(self, connection: Connection) -> None:
        if connection not in self._connections:
            return
        del self._connections[connection]
        self._quota.leave(connection.source)
        self._selector.unregister(connection.socket)
        finish(connection.socket)


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
