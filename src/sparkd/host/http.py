"""HTTP as sparkd asks: the docker socket (GET only), the engine on this node, the agents of the others.

Answers come from outside: sizes are bounded, and what is not HTTP or not in time is `Unanswered`. Nothing is acted on
but status, body and headers: no redirection is followed, no cookie kept, no proxy asked.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from urllib.parse import urlencode, urlsplit

from msgspec import Struct, field

from sparkd.host.http_connection import Connection, Deadline, Question, Refused, Server, Unanswered

__all__ = ["Answer", "HttpClient", "Refused", "Unanswered"]

BODY_LIMIT_BYTES = 8 << 20
"""/metrics of vLLM 0.32 is 54 KB; a docker container list stays far below this."""
CONNECT_SECONDS = 10.0


class Answer(Struct, frozen=True):
    status: int
    body: bytes
    headers: Mapping[str, str] = field(default_factory=dict)
    """Names in lower case."""


class HttpClient:
    """Keep-alive client of one server, for one thread at a time."""

    def __init__(
        self,
        base_url: str,
        *,
        socket_path: str | None = None,
        headers: Mapping[str, str] | None = None,
        local_address: str | None = None,
        tires: bool = False,
    ) -> None:
        """`local_address`: this machine's address to ask from. `tires`: the server closes connections that are idle,
        perhaps just as it is asked: what was to be read is then asked for once more, on a new one.
        """
        url = urlsplit(base_url)
        self._server = Server(url.hostname or "", url.port or 80, socket_path, local_address)
        # What is packed may unfold to a thousand times its size.
        self._headers = {"Host": url.netloc, "Accept-Encoding": "identity", **(headers or {})}
        self._tires = tires
        self._connection: Connection | None = None

    def get(
        self,
        path: str,
        timeout_seconds: float,
        params: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
        connect_seconds: float | None = None,
    ) -> Answer:
        """All within `timeout_seconds`. Raises Unanswered; Refused where nobody listens.

        `connect_seconds`: to connect, if less.
        """
        question = Question("GET", _target(path, params), {**self._headers, **(headers or {})})
        return self._answer(question, timeout_seconds, connect_seconds or timeout_seconds)

    def post_json(self, path: str, body: Mapping[str, object], timeout_seconds: float) -> Answer:
        """Raises Unanswered."""
        sent = json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode()
        headers = {**self._headers, "Content-Type": "application/json", "Content-Length": str(len(sent))}
        return self._answer(Question("POST", path, headers, sent), timeout_seconds, timeout_seconds)

    @contextmanager
    def stream(self, path: str, params: Mapping[str, str]) -> Iterator[Iterator[bytes]]:
        """Raw chunks of an endless GET, until the server ends it. Raises Unanswered, also between chunks."""
        endless = Deadline.after(None)
        try:
            connection = self._connected(Deadline.after(CONNECT_SECONDS))
            head = connection.ask(Question("GET", _target(path, params), self._headers), endless)
            if head.status != 200:
                raise Unanswered(f"HTTP {head.status}")
            yield connection.body(endless)
        finally:
            self.close()

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _answer(self, question: Question, seconds: float, connect_seconds: float) -> Answer:
        deadline = Deadline.after(seconds)
        again = False
        try:
            connecting = Deadline.after(min(connect_seconds, seconds))
            connection = self._connected(connecting)
            try:
                head = connection.ask(question, deadline)
            except Unanswered:
                if not self._tires or question.method != "GET" or not connection.tired():
                    raise
                self.close()
                connection = self._connected(connecting)
                head = connection.ask(question, deadline)
            body = bytearray()
            for chunk in connection.body(deadline):
                body += chunk
                if len(body) > BODY_LIMIT_BYTES:
                    raise Unanswered(f"answer of over {BODY_LIMIT_BYTES} bytes")
            again = connection.again()
        finally:
            if not again:
                self.close()
        return Answer(head.status, bytes(body), head.headers)

    def _connected(self, deadline: Deadline) -> Connection:
        if self._connection is not None and not self._connection.quiet():
            self.close()
        if self._connection is None:
            self._connection = Connection(self._server, deadline)
        return self._connection


def _target(path: str, params: Mapping[str, str] | None) -> str:
    return f"{path}?{urlencode(params)}" if params else path
