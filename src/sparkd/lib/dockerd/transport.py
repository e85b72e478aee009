"""What carries the SDK's requests: dockerd's socket with limits for a whole answer, or recorded answers.

requests and urllib3 limit the wait for each read, and no size. Here the socket itself counts, so that headers which
drip and bodies without an end are bounded too.
"""

from __future__ import annotations

import io
import re
import socket
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING
from urllib.parse import quote, unquote

from sparkd.lib.dockerd.sdk import (
    BaseAdapter,
    HTTPAdapter,
    HTTPConnection,
    HTTPConnectionPool,
    PreparedRequest,
    Response,
)

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

ANSWER_LIMIT_BYTES = 8 << 20
"""dockerd is root's own: this bounds a fault, and a list of some thousand containers stays far below it."""

_VERSION_PREFIX = re.compile(r"/v\d+\.\d+(?=/)")


class Transport(BaseAdapter):
    """What `mount` of a requests.Session takes, with the limits of what is answered."""

    def __init__(self) -> None:
        super().__init__()
        self._deadline: float | None = None
        self._bytes_left = 0

    def limit(self, seconds: float | None) -> None:
        """For all that is answered from here on; None: streams, which only the timeout of each read ends."""
        self._deadline = None if seconds is None else time.monotonic() + seconds
        self._bytes_left = ANSWER_LIMIT_BYTES

    def arm(self, sock: socket.socket) -> None:
        """Let the next operation of a socket take what is left."""
        if self._deadline is not None:
            left = self._deadline - time.monotonic()
            if left <= 0:
                raise TimeoutError
            sock.settimeout(left)

    def count(self, received_bytes: int) -> None:
        self._bytes_left -= received_bytes
        if self._deadline is not None and self._bytes_left < 0:
            raise OSError(f"answer of over {ANSWER_LIMIT_BYTES} bytes")


class _LimitedSocket(socket.socket):
    """http.client reads by recv_into alone, through socket.SocketIO."""

    def __init__(self, transport: Transport) -> None:
        super().__init__(socket.AF_UNIX)
        self._transport = transport

    def recv_into(self, buffer: WriteableBuffer, nbytes: int = 0, flags: int = 0) -> int:
        self._transport.arm(self)
        received_bytes = super().recv_into(buffer, nbytes, flags)
        self._transport.count(received_bytes)
        return received_bytes


class _Connection(HTTPConnection):
    def __init__(self, transport: Transport, path: str) -> None:
        super().__init__("localhost")
        self._transport = transport
        self._path = path

    def connect(self) -> None:
        self.sock = _LimitedSocket(self._transport)
        self.sock.settimeout(self.timeout)
        self._transport.arm(self.sock)
        self.sock.connect(self._path)


class _Pool(HTTPConnectionPool):
    def __init__(self, transport: Transport, path: str) -> None:
        super().__init__("localhost", maxsize=10)
        self._new = partial(_Connection, transport, path)

    def _new_conn(self) -> HTTPConnection:
        return self._new()


class SocketTransport(Transport, HTTPAdapter):
    """dockerd's socket. All questions share its connections; the SDK's own adapter keeps one open for each URL."""

    def __init__(self, path: str) -> None:
        super().__init__()
        self._pool = _Pool(self, path)

    def get_connection_with_tls_context(self, *_args: object, **_kwargs: object) -> HTTPConnectionPool:
        return self._pool

    def request_url(self, request: PreparedRequest, _proxies: Mapping[str, str] | None) -> str:
        return request.path_url

    def close(self) -> None:
        self._pool.close()
        super().close()


class RecordedTransport(Transport):
    """Answers as docker did when they were recorded, whatever the query; 404 for what was not."""

    def __init__(self, read: Callable[[str], bytes]) -> None:
        super().__init__()
        self._read = read

    def send(self, request: PreparedRequest, *_args: object, **_kwargs: object) -> Response:
        path = _VERSION_PREFIX.sub("", request.path_url.partition("?")[0], count=1)
        answer = Response()
        answer.request, answer.url = request, str(request.url)
        answer.status_code, body = self._answer(quote(unquote(path), safe="/:@"))
        answer.headers["Content-Type"] = "application/json"
        answer.raw = io.BytesIO(body)
        return answer

    def _answer(self, path: str) -> tuple[int, bytes]:
        for status, end in ((200, "json"), (500, "500.json")):
            with suppress(FileNotFoundError, NotADirectoryError):
                return status, self._read(f"{path}.{end}")
        return 404, b'{"message": "not recorded"}'

    def close(self) -> None: ...
