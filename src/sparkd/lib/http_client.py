"""HTTP requests of an agent: httpx, with one deadline for each exchange and bounded responses.

Servers are not trusted. The deadline covers everything from connecting to the last byte, so that a server that drips
bytes gains no time. No redirect is followed, no cookie is kept, no proxy is used, nothing is decompressed.
"""

from __future__ import annotations

import asyncio
import errno
import json
import logging
import os
import socket
import sys
from collections.abc import Mapping
from typing import NamedTuple

from sparkd.lib.imports import without

with without("rich", "click"):
    import httpcore
    import httpx

# httpcore imports sniffio four times a request, and where it is not installed looks for it on the disk each time.
sys.modules.setdefault("sniffio", None)  # type: ignore[arg-type]  # None is what the import system looks for

for _name in ("httpx", "httpcore"):
    # At INFO they log every request, at DEBUG its headers: keys and signatures.
    logging.getLogger(_name).setLevel(logging.WARNING)

BODY_LIMIT_BYTES = 8 << 20
"""/metrics of vLLM 0.32 is 54 KB. httpcore itself limits the headers to 100 KiB."""
KEEPALIVE_SECONDS = 4.0
"""vLLM closes a connection that was idle for five seconds, perhaps just as the next request comes."""
CONNECTION_CLOSED = "Server disconnected without sending a response."
"""httpcore's text."""


class HttpError(Exception):
    """No valid response: refused, reset, too late, too large, or not HTTP. `str()` says which."""


class ConnectRefused(HttpError):  # noqa: N818 - a state of the server
    """The machine responds, and no process listens on the port."""


class Response(NamedTuple):
    status: int
    body: bytes
    headers: Mapping[str, str]
    """Names in lower case."""


class HttpClient:
    """Keep-alive client of one server, for the tasks of one event loop. Requests may overlap."""

    def __init__(
        self, base_url: str, *, headers: Mapping[str, str] | None = None, local_address: str | None = None
    ) -> None:
        """`local_address`: the address of this machine to connect from."""
        self._base_url = base_url
        self._headers = {"Accept-Encoding": "identity", "User-Agent": "sparkd", **(headers or {})}
        self._transport = _Transport(local_address)
        self._client = httpx.AsyncClient(transport=self._transport, trust_env=False)

    async def get(
        self,
        path: str,
        timeout_seconds: float,
        *,
        headers: Mapping[str, str] | None = None,
        connect_seconds: float | None = None,
    ) -> Response:
        """Everything within `timeout_seconds`; to connect, `connect_seconds` if less. Raises HttpError."""
        return await self._exchange("GET", path, timeout_seconds, headers or {}, connect_seconds=connect_seconds)

    async def post_json(self, path: str, body: Mapping[str, object], timeout_seconds: float) -> Response:
        """Raises HttpError."""
        content = json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode()
        return await self._exchange("POST", path, timeout_seconds, {"Content-Type": "application/json"}, content)

    async def close(self) -> None:
        """Close all connections; the next request opens a new one."""
        await self._transport.aclose()

    async def _exchange(
        self,
        method: str,
        path: str,
        seconds: float,
        headers: Mapping[str, str],
        content: bytes | None = None,
        connect_seconds: float | None = None,
    ) -> Response:
        try:
            async with (
                asyncio.timeout(seconds),
                self._client.stream(
                    method,
                    self._base_url + path,
                    headers={**self._headers, **headers},
                    content=content,
                    timeout=httpx.Timeout(None, connect=connect_seconds),
                ) as response,
            ):
                body = bytearray()
                async for chunk in response.aiter_raw():
                    body += chunk
                    if len(body) > BODY_LIMIT_BYTES:
                        raise HttpError(f"answer of over {BODY_LIMIT_BYTES} bytes")
        except httpx.ConnectTimeout:
            raise HttpError(f"no answer within {connect_seconds:g} s") from None
        except TimeoutError:
            raise HttpError(f"no answer within {seconds:g} s") from None
        except (httpx.HTTPError, httpx.InvalidURL, UnicodeError) as error:  # UnicodeError: no host name, no header
            raise _http_error(error) from None
        await self._transport.close_unclean()
        return Response(response.status_code, bytes(body), dict(response.headers))


class _Transport(httpx.AsyncHTTPTransport):
    """Plain HTTP over httpcore's connection pool. An SSL context, which httpx would create, costs 0.4 MiB."""

    def __init__(self, local_address: str | None) -> None:
        self._pool = httpcore.AsyncConnectionPool(keepalive_expiry=KEEPALIVE_SECONDS, local_address=local_address)

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        response = await super().handle_async_request(request)
        for name in ("Location", "Set-Cookie"):  # httpx parses them even where it follows no redirect
            response.headers.pop(name, None)
        return response

    async def close_unclean(self) -> None:
        """Close connections whose server sent more than its response.

        h11 would take that for the response to the next request, and httpcore does not look.
        """
        for connection in self._pool.connections:
            match connection:
                case httpcore.AsyncHTTPConnection(_connection=httpcore.AsyncHTTP11Connection(_h11_state=http11)):
                    if connection.is_idle() and http11.trailing_data[0]:
                        await connection.aclose()


def _http_error(error: Exception) -> HttpError:
    """With the reason that the system gave, where there is one: httpx and anyio wrap it in their own."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, socket.gaierror):
            return HttpError(str(cause))
        if isinstance(cause, OSError) and cause.errno:
            kind = ConnectRefused if cause.errno == errno.ECONNREFUSED else HttpError
            return kind(f"[Errno {cause.errno}] {os.strerror(cause.errno)}")
        cause = cause.__cause__ or cause.__context__
    if str(error) == CONNECTION_CLOSED:
        return HttpError("the server closed the connection before its answer")
    return HttpError(str(error) or type(error).__name__)
