"""One connection of the report server: what came, parsed by h11, what is still to be sent, and until when.

Nothing here waits. The server calls when the socket is ready, or the deadline is over.
"""

from __future__ import annotations

import socket
from collections.abc import Mapping
from contextlib import suppress
from enum import Enum

import h11
from msgspec import Struct


class Gone(Exception):  # noqa: N818 - a state of affairs, not an error
    """There is nothing more to say on this connection."""


class Request(Struct, frozen=True):
    """A GET without a body. `source`: IP of who asks. `path` includes the query. Names of headers are lower-case."""

    source: str
    path: str
    headers: Mapping[str, str]


class Response(Struct, frozen=True):
    status: int
    body: bytes = b""
    content_type: str = "application/json"
    headers: tuple[tuple[str, str], ...] = ()


class Limits(Struct, frozen=True):
    """The bounds of one server; those of a source are for all its connections together."""

    connections: int = 64
    per_source: int = 8
    header_bytes: int = 8192
    """Of a request line with its headers, and of what may wait behind a request that is held."""
    request_seconds: float = 5.0
    """For a whole request, from the connection or from the request's first byte: a slow drip is no way to stay."""
    idle_seconds: float = 60.0
    """Between an answer and the next request."""
    hold_seconds: float = 10.0
    answer_seconds: float = 5.0
    """To take the whole answer."""
    requests_per_second: float | None = 20
    """None: not counted."""
    burst: int = 40


class State(Enum):
    IDLE = "idle"
    READING = "reading"
    HELD = "held"
    ANSWERING = "answering"


class Connection:
    """`deadline` and `now` are monotonic seconds. Methods raise Gone where the connection has come to its end."""

    def __init__(self, sock: socket.socket, source: str, limits: Limits, now: float) -> None:
        self.socket = sock
        self.source = source
        self.state = State.READING
        self.deadline = now + limits.request_seconds
        self.request = Request(source, "", {})
        """The last one that came whole."""
        self.known = False
        """Whether a request of it was ever taken: where requests are signed, whether it is no stranger's."""
        self._limits = limits
        self._h11 = h11.Connection(h11.SERVER, max_incomplete_event_size=limits.header_bytes)
        self._unsent = memoryview(b"")

    def receive(self, now: float) -> None:
        """Take what has come, and no more than the limit. Raises Gone where the client has closed, also when held."""
        room = self._limits.header_bytes + 1 - len(self._h11.trailing_data[0])
        if room <= 0:
            raise Gone
        try:
            data = self.socket.recv(room)
        except BlockingIOError:
            return
        except OSError:
            raise Gone from None
        if not data:
            raise Gone
        if self.state is State.IDLE:
            self._enter(State.READING, now + self._limits.request_seconds)
        self._h11.receive_data(data)

    def advance(self, now: float) -> Request | None:
        """Send what is to be sent, then give the next whole request; None while that takes more time."""
        while self._send(now):
            request = self._parse(now)
            if request is not None:
                self.request = request
                return request
            if self.state is not State.ANSWERING:
                return None
        return None

    def hold(self, now: float) -> None:
        """Leave the request unanswered for now."""
        self.known = True
        if self.state is not State.HELD:
            self._enter(State.HELD, now + self._limits.hold_seconds)

    def answer(self, response: Response, now: float) -> None:
        """Answer the request at hand. Raises h11.LocalProtocolError for a response that is no HTTP."""
        self.known = self.known or response.status != 401
        head = h11.Response(
            status_code=response.status,
            headers=[
                ("Content-Type", response.content_type),
                ("Content-Length", str(len(response.body))),
                ("Cache-Control", "no-store"),
                *response.headers,
            ],
        )
        self._put(head, response.body, now)

    def refuse(self, status: int, now: float) -> None:
        """Answer with a bare status, and close."""
        headers = [("Content-Length", "0"), ("Connection", "close")]
        if status == 405:
            headers.append(("Allow", "GET"))
        if self._h11.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
            raise Gone
        self._put(h11.Response(status_code=status, headers=headers), b"", now)

    def _enter(self, state: State, deadline: float) -> None:
        self.state = state
        self.deadline = deadline

    def _put(self, head: h11.Response, body: bytes, now: float) -> None:
        events = (head, h11.Data(data=body), h11.EndOfMessage())
        self._unsent = memoryview(b"".join(self._h11.send(event) or b"" for event in events))
        self._enter(State.ANSWERING, now + self._limits.answer_seconds)

    def _send(self, now: float) -> bool:
        """Send on; whether nothing is left. Raises Gone where the answer was the last one."""
        if self.state is not State.ANSWERING:
            return True
        try:
            sent = self.socket.send(self._unsent)
        except BlockingIOError:
            return False
        except OSError:
            raise Gone from None
        self._unsent = self._unsent[sent:]
        if self._unsent:
            return False
        if (self._h11.our_state, self._h11.their_state) != (h11.DONE, h11.DONE):
            raise Gone
        self._h11.start_next_cycle()
        if self._h11.trailing_data[0]:
            self._enter(State.READING, now + self._limits.request_seconds)
        else:
            self._enter(State.IDLE, now + self._limits.idle_seconds)
        return True

    def _parse(self, now: float) -> Request | None:
        """The next whole request; None where there is none yet, or where it was refused."""
        try:
            event = self._h11.next_event()
            if not isinstance(event, h11.Request):
                return None
            status = _fault(event)
            if status is None:
                self._h11.next_event()  # the end of a message without a body
                return _request(self.source, event)
        except h11.RemoteProtocolError as error:
            status = error.error_status_hint
        self.refuse(status, now)
        return None


def _fault(event: h11.Request) -> int | None:
    """The status to refuse a request with; None where it is good."""
    if event.method != b"GET":
        return 405
    names = [name for name, _ in event.headers]
    if b"transfer-encoding" in names or any(n == b"content-length" and v.strip(b"0") for n, v in event.headers):
        return 413
    # Of two values, two programs may read another one each.
    return 400 if len(set(names)) < len(names) or not event.target.startswith(b"/") else None


def _request(source: str, event: h11.Request) -> Request:
    headers = {name.decode("ascii"): value.decode("latin-1") for name, value in event.headers}
    return Request(source, event.target.decode("ascii"), headers)


def finish(sock: socket.socket) -> None:
    """Close. With bytes unread the kernel would reset the connection, and the client might lose its answer."""
    with suppress(OSError):
        sock.recv(1 << 16)
    sock.close()
