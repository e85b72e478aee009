"""HTTP as sparkd asks: the docker socket (GET only), the engine on this node, the agents of the others.

The only home of httpx.

Answers come from outside: sizes are bounded, and what is not HTTP or not in time is `Unanswered`.
"""

from __future__ import annotations

import errno
import ssl
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

import httpx

from sparkd.host.http_deadline import Backend, ConnectionPool, Deadline

BODY_LIMIT_BYTES = 8 << 20
"""/metrics of vLLM 0.32 is 54 KB; a docker container list stays far below this."""


class Unanswered(Exception):  # noqa: N818 - a state of affairs, not yet an error
    """Nobody answered: refused, reset, timed out, or not HTTP. `str()` says which."""


class Refused(Unanswered):
    """The machine answers, and nobody listens there."""


@dataclass(frozen=True)
class Answer:
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
    ) -> None:
        """`local_address`: this machine's address to ask from."""
        # A transport alone: what it leaves out (proxies, redirections, cookies) would act on answers of anybody.
        self._base_url = base_url
        self._deadline = Deadline()
        self._transport = _transport(socket_path, local_address, self._deadline)
        # What is packed may unfold to a thousand times its size.
        self._headers = {"Accept-Encoding": "identity", **(headers or {})}

    def get(
        self,
        path: str,
        timeout_seconds: float,
        params: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
        connect_seconds: float | None = None,
    ) -> Answer:
        """Raises Unanswered; Refused where nobody listens. `connect_seconds`: to connect, if less."""
        timeout = httpx.Timeout(timeout_seconds, connect=connect_seconds or timeout_seconds)
        return self._ask(self._request("GET", path, timeout, params=params, headers=headers), timeout)

    def post_json(self, path: str, body: Mapping[str, object], timeout_seconds: float) -> Answer:
        """Raises Unanswered."""
        timeout = httpx.Timeout(timeout_seconds)
        return self._ask(self._request("POST", path, timeout, json=body), timeout)

    def _ask(self, request: httpx.Request, timeout: httpx.Timeout) -> Answer:
        self._deadline.at = time.monotonic() + (timeout.read or 0.0)
        with self._sent(request, timeout) as response:
            body = bytearray()
            for chunk in response.iter_raw():
                body += chunk
                if len(body) > BODY_LIMIT_BYTES:
                    raise Unanswered(f"answer of over {BODY_LIMIT_BYTES} bytes")
            return Answer(response.status_code, bytes(body), dict(response.headers))

    @contextmanager
    def stream(self, path: str, params: Mapping[str, str]) -> Iterator[Iterator[bytes]]:
        """Raw chunks of an endless GET, until the server ends it. Raises Unanswered, also between chunks."""
        self._deadline.at = None
        timeout = httpx.Timeout(10.0, read=None)
        with self._sent(self._request("GET", path, timeout, params=params), timeout) as response:
            if response.status_code != 200:
                raise Unanswered(f"HTTP {response.status_code}")
            yield response.iter_raw()

    def _request(
        self,
        method: str,
        path: str,
        timeout: httpx.Timeout,
        *,
        params: Mapping[str, str] | None = None,
        json: Mapping[str, object] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> httpx.Request:
        return httpx.Request(
            method,
            f"{self._base_url}{path}",
            params=params,
            json=json,
            headers={**self._headers, **(headers or {})},
            extensions={"timeout": timeout.as_dict()},
        )

    @contextmanager
    def _sent(self, request: httpx.Request, timeout: httpx.Timeout) -> Iterator[httpx.Response]:
        """The answer's beginning; its body is still to come. Raises Unanswered, also while the body comes."""
        try:
            response = self._transport.handle_request(request)
            try:
                yield response
            finally:
                response.close()
        except httpx.TimeoutException:
            raise Unanswered(f"no answer within {timeout.read or timeout.connect:g} s") from None
        except httpx.HTTPError as error:
            kind = Refused if _refused(error) else Unanswered
            raise kind(str(error) or type(error).__name__) from None

    def close(self) -> None:
        self._transport.close()


def _transport(socket_path: str | None, local_address: str | None, deadline: Deadline) -> httpx.HTTPTransport:
    # Plain HTTP alone. httpx would read its file of certificates for every client, also while an upgrade of the package
    # replaces it: seen, and the agent died of it.
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    transport = httpx.HTTPTransport(verify=context)
    # httpx has no place of its own to say how its connections read.
    transport._pool = ConnectionPool(
        ssl_context=context, uds=socket_path, local_address=local_address, network_backend=Backend(deadline)
    )
    return transport


def _refused(error: BaseException | None) -> bool:
    """Whether a connection was refused. httpx keeps the system's error at the end of a chain of its own."""
    while error is not None:
        if isinstance(error, OSError) and error.errno == errno.ECONNREFUSED:
            return True
        error = error.__cause__ or error.__context__
    return False
