"""One connection to a server: a socket that h11 parses, all of whose waits keep one deadline.

A timeout for each read lets whoever drips keep a reader for ever.
"""

from __future__ import annotations

import select
import socket
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import NamedTuple

import h11
from msgspec import Struct

HEAD_LIMIT_BYTES = 64 << 10
READ_BYTES = 64 << 10


class Unanswered(Exception):  # noqa: N818 - a state of affairs, not yet an error
    """Nobody answered: refused, reset, timed out, or not HTTP. `str()` says which."""


class Refused(Unanswered):
    """The machine answers, and nobody listens there."""


class Deadline(Struct, frozen=True):
    """`seconds` from when it is made, for everything together; None: no end."""

    seconds: float | None
    at: float

    @classmethod
    def after(cls, seconds: float | None) -> Deadline:
        return cls(seconds, time.monotonic() + (seconds or 0.0))

    def left(self) -> float | None:
        """Raises TimeoutError where nothing is left."""
        if self.seconds is None:
            return None
        left = self.at - time.monotonic()
        if left <= 0:
            raise TimeoutError
        return left


class Server(Struct, frozen=True):
    """Who is asked: behind a socket of this machine where there is a `path`."""

    host: str
    port: int
    path: str | None = None
    local_address: str | None = None
    """This machine's address to ask from."""

    def connect(self, deadline: Deadline) -> socket.socket:
        if self.path is not None:
            sock = socket.socket(socket.AF_UNIX)
            try:
                sock.settimeout(deadline.left())
                sock.connect(self.path)
            except OSError:
                sock.close()
                raise
            return sock
        own = (self.local_address, 0) if self.local_address else None
        sock = socket.create_connection((self.host, self.port), deadline.left(), own)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return sock


class Question(NamedTuple):
    method: str
    target: str
    headers: Mapping[str, str]
    body: bytes = b""


class Head(NamedTuple):
    """How an answer begins."""

    status: int
    headers: Mapping[str, str]
    """Names in lower case."""


class Connection:
    """For one question after the other, by one thread at a time. Every method but `close` may raise Unanswered."""

    def __init__(self, server: Server, deadline: Deadline) -> None:
        self._h11 = h11.Connection(h11.CLIENT, max_incomplete_event_size=HEAD_LIMIT_BYTES)
        self._answers = 0
        self._heard = False
        with _unanswered(deadline):
            self._socket = server.connect(deadline)

    def ask(self, question: Question, deadline: Deadline) -> Head:
        """The answer's beginning; its body is still to come."""
        headers = list(question.headers.items())
        with _unanswered(deadline):
            request = h11.Request(method=question.method, target=question.target, headers=headers)
            sent = self._h11.send(request) or b""
            if question.body:
                sent += self._h11.send(h11.Data(data=question.body)) or b""
            sent += self._h11.send(h11.EndOfMessage()) or b""
            self._heard = False
            self._socket.settimeout(deadline.left())
            self._socket.sendall(sent)
            while not isinstance(event := self._next(deadline), h11.Response):
                pass  # 1xx: the answer is still to come
            said = {name.decode("latin-1"): value.decode("latin-1") for name, value in event.headers}
            return Head(event.status_code, said)

    def body(self, deadline: Deadline) -> Iterator[bytes]:
        """What follows the answer's beginning, as it comes, until its end."""
        while True:
            with _unanswered(deadline):
                event = self._next(deadline)
            if not isinstance(event, h11.Data):
                return
            yield bytes(event.data)

    def again(self) -> bool:
        """Whether it can carry another question: the answer came whole, nothing came behind it, and both sides stay."""
        if self._h11.their_state is not h11.DONE or self._h11.our_state is not h11.DONE:
            return False
        if self._h11.trailing_data != (b"", False):
            return False
        self._h11.start_next_cycle()
        self._answers += 1
        return True

    def tired(self) -> bool:
        """Whether the server closed it, after earlier answers, before a word of this one: it may have done so just as
        it was asked, having waited for long enough."""
        return self._answers > 0 and not self._heard and not self.quiet()

    def quiet(self) -> bool:
        """Whether the server has neither closed it nor said anything since its last answer."""
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        return not poll.poll(0)

    def close(self) -> None:
        self._socket.close()

    def _next(self, deadline: Deadline) -> h11.Event:
        while (event := self._h11.next_event()) is h11.NEED_DATA:
            self._socket.settimeout(deadline.left())
            data = self._socket.recv(READ_BYTES)
            if not data and self._h11.their_state is h11.SEND_RESPONSE:
                raise Unanswered("the server closed the connection before its answer")
            self._heard = True
            self._h11.receive_data(data)
        if event is h11.PAUSED:
            raise Unanswered("the server speaks out of turn")
        return event  # type: ignore[return-value]  # h11 types its two sentinels as Event's like


@contextmanager
def _unanswered(deadline: Deadline) -> Iterator[None]:
    try:
        yield
    except TimeoutError:
        told = f" within {deadline.seconds:g} s" if deadline.seconds is not None else ""
        raise Unanswered(f"no answer{told}") from None
    except ConnectionRefusedError as error:
        raise Refused(str(error)) from None
    except (OSError, UnicodeError, h11.ProtocolError) as error:  # UnicodeError: a name that DNS can't hold
        raise Unanswered(str(error) or type(error).__name__) from None
