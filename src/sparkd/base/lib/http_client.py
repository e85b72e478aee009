"""HTTP requests of an agent: httpx, with one deadline for each exchange and bounded responses.

Servers are not trusted. The deadline covers everything from connecting to the last byte: a server that drips bytes
gains no time. httpx's transport is used without its client, which costs a quarter more CPU: no redirects, cookies,
proxies, or decompression.
"""

import asyncio
import errno
import logging
import os
import re
import socket
import ssl
import sys
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import aclosing
from typing import Any, NamedTuple

from sparkd.base.lib import without

with without("rich", "click"):
    import httpcore
    import httpx

# httpcore imports sniffio four times a request; where it is not installed, each import searches the disk.
sys.modules.setdefault("sniffio", None)  # type: ignore[arg-type]  # the import system takes None

logging.getLogger("httpcore").setLevel(logging.WARNING)  # at DEBUG it logs headers: keys and signatures

BODY_LIMIT_BYTES = 8 << 20
"""/metrics of vLLM 0.32 is 54 KB. httpcore itself limits the headers to 100 KiB."""
KEEPALIVE_SECONDS = 4.0
"""vLLM closes a connection that was idle for five seconds, perhaps during the next request."""
CONNECTIONS = 10
_INFORMATIONAL, _BEGIN_BYTES = re.compile(rb"HTTP/\d\.\d 1"), 10
"""The first bytes of an answer with a status of 1xx, and their number. h11 takes any version."""


class HttpError(Exception):
    """No valid response: refused, reset, too late, too large, or not HTTP."""


class ConnectRefused(HttpError):  # noqa: N818 - a state of the server
    """The machine responds, and no process listens on the port."""


class LocalAddressGone(HttpError):  # noqa: N818 - a state of this machine
    """This machine no longer has the address to connect from."""


class LateError(HttpError):
    """The whole answer was not there in time."""


class WrongServerError(HttpError):
    """Another process than the expected one accepts connections."""


Admit = Callable[[socket.socket | None], Coroutine[Any, Any, None]]
"""Proves the server of a new connection before anything is sent on it; None: it was reset as it was made. Raises
HttpError."""


class ReceivedResponse(NamedTuple):
    status: int
    body: bytes
    headers: Mapping[str, str]


class HttpClient:
    """Keep-alive client of one server, for the tasks of one event loop. Requests may overlap."""

    def __init__(
        self,
        base_url: str,
        *,
        headers: Mapping[str, str] | None = None,
        local_address: str | None = None,
        admit: Admit | None = None,
        connections: int = CONNECTIONS,
    ) -> None:
        """`local_address`: the address of this machine to connect from. `connections`: the most at once."""
        self._base_url = base_url
        self._headers = {"Accept-Encoding": "identity", "User-Agent": "sparkd", **(headers or {})}
        self._transport = _Transport(local_address, admit, connections)
        self._under_way = 0

    async def request(
        self,
        path: str,
        timeout_seconds: float,
        *,
        received: Callable[[bytes], object] | None = None,
        headers: Mapping[str, str] | None = None,
        connect_seconds: float | None = None,
        json: Mapping[str, object] | None = None,
        limit_bytes: int = BODY_LIMIT_BYTES,
    ) -> ReceivedResponse:
        """GET, or POST `json`. All of it may take `timeout_seconds`; connecting `connect_seconds`, where that is given.

        `received` gets the body's pieces as they come; the response's body is then empty. Raises HttpError, and what
        `received` raises.
        """
        body, bytes_left, is_whole = bytearray(), limit_bytes, False
        self._under_way += 1
        try:
            request = httpx.Request(
                "GET" if json is None else "POST",
                self._base_url + path,
                headers={**self._headers, **(headers or {})},
                json=json,
                extensions={"timeout": {"connect": connect_seconds}},
            )
            async with (
                asyncio.timeout(timeout_seconds),
                aclosing(await self._transport.handle_async_request(request)) as response,
            ):
                async for chunk in response.aiter_raw():
                    # A piece of one byte costs as much as one of 512, and a server that can't sign may send many:
                    # 255,000 of them, in 256 KiB, took 11 s of a core (measured).
                    bytes_left -= len(chunk) if received else max(len(chunk), 512)
                    if bytes_left < 0:
                        raise HttpError(f"answer of over {limit_bytes} bytes")
                    (received or body.extend)(chunk)
            is_whole = True
        except httpx.ConnectTimeout:
            raise HttpError(f"no answer within {connect_seconds:g} s") from None
        except TimeoutError:
            raise LateError(f"no answer within {timeout_seconds:g} s") from None
        except (httpx.HTTPError, httpx.InvalidURL, UnicodeError) as error:  # UnicodeError: no host name, no header
            raise http_error(error) from None
        finally:
            self._under_way -= 1
            if not (is_whole or self._under_way):  # httpcore frees no place of one that ends as it gets a connection
                await self.close()
        await self._transport.close_unclean()
        return ReceivedResponse(response.status_code, bytes(body), dict(response.headers))

    async def close(self) -> None:
        await self._transport.aclose()


class _Transport(httpx.AsyncHTTPTransport):
    """httpcore's connection pool without an SSL context, which httpx would create and which takes 0.4 MiB."""

    def __init__(self, local_address: str | None, admit: Admit | None, connections: int) -> None:
        self._pool = httpcore.AsyncConnectionPool(
            max_connections=connections,
            keepalive_expiry=KEEPALIVE_SECONDS,
            local_address=local_address,
            network_backend=_Connections(admit),
        )

    async def close_unclean(self) -> None:
        """Close connections with data behind the response: h11 would take it for the next response."""
        for connection in self._pool.connections:
            match connection:
                case httpcore.AsyncHTTPConnection(_connection=httpcore.AsyncHTTP11Connection(_h11_state=http11)):
                    if connection.is_idle() and http11.trailing_data[0]:
                        await connection.aclose()


class _Connections(httpcore.AnyIOBackend):
    """Connections that are proven by `admit`, where there is one, and whose answers begin at once."""

    def __init__(self, admit: Admit | None) -> None:
        self._admit = admit

    async def connect_tcp(self, *address: Any, **options: Any) -> httpcore.AsyncNetworkStream:
        try:
            stream = await super().connect_tcp(*address, **options)
        except httpcore.ConnectError as error:
            if self._admit is not None and any(
                isinstance(cause, ConnectionResetError) for cause in _list_causes(error)
            ):
                await self._admit(None)
            raise
        try:
            if self._admit is not None:
                await self._admit(stream.get_extra_info("socket"))
        except BaseException:
            await stream.aclose()
            raise
        return _Stream(stream)


class _Stream(httpcore.AsyncNetworkStream):
    """Refuses an informational answer (1xx), which nothing here requests: httpcore reads on behind it without end, and
    without a turn of the loop.
    """

    def __init__(self, stream: httpcore.AsyncNetworkStream) -> None:
        self._stream = stream
        self._begin = b""
        """The first bytes of the answer, up to the first digit of its status code."""

    async def aclose(self) -> None:
        await self._stream.aclose()

    def get_extra_info(self, info: str) -> Any:
        return self._stream.get_extra_info(info)

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:
        self._begin = b""
        await self._stream.write(buffer, timeout)

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        received = await self._stream.read(max_bytes, timeout)
        if len(self._begin) < _BEGIN_BYTES:
            self._begin = (self._begin + received)[:_BEGIN_BYTES]
            if _INFORMATIONAL.match(self._begin):
                raise httpcore.RemoteProtocolError("it answers with 1xx, which nothing has requested")
        return received


_KINDS = {errno.ECONNREFUSED: ConnectRefused, errno.EADDRNOTAVAIL: LocalAddressGone}


def http_error(error: Exception) -> HttpError:
    """The error with the system's reason, if any: httpx and anyio wrap it in their own errors."""
    if str(error) == "Server disconnected without sending a response.":  # as httpcore says it
        return HttpError("the server closed the connection before its answer")
    for cause in _list_causes(error):
        if isinstance(cause, socket.gaierror | ssl.SSLError):  # their numbers are no errno
            return HttpError(str(cause))
        if isinstance(cause, OSError) and cause.errno:
            return _KINDS.get(cause.errno, HttpError)(f"[Errno {cause.errno}] {os.strerror(cause.errno)}")
    return HttpError(str(error) or type(error).__name__)


def _list_causes(error: BaseException | None) -> Iterator[BaseException]:
    """The error and what is behind it, outermost first."""
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__
