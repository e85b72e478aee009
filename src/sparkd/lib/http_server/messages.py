"""What a handler gets and gives, and the bounds of one server."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from typing import Any, NamedTuple


class Request(NamedTuple):
    """A GET without a body. `source`: the client's IP. `path` includes the query. Names of headers are lower-case."""

    source: str
    path: str
    headers: Mapping[str, str]


class Response(NamedTuple):
    status: int
    body: bytes = b""
    content_type: str = "application/json"
    headers: tuple[tuple[str, str], ...] = ()


Handler = Callable[[Request], Coroutine[Any, Any, Response]]
"""Runs in the loop's thread and must not block it. It may wait for news: a held request costs a socket and no thread.
It is cancelled when its client leaves."""


class Limits(NamedTuple):
    """The bounds of one server; those of a source are for all its connections together."""

    connections: int = 64
    per_source: int = 8
    header_bytes: int = 8192
    """Of a request line with its headers, and of what may wait behind a request that is held."""
    request_seconds: float = 5.0
    """For a whole request, from the connection or from the request's first byte: a slow drip cannot keep a place."""
    idle_seconds: float = 60.0
    """Between an answer and the next request."""
    handler_seconds: float = 10.0
    """For a handler to return, the time that it holds a request included."""
    answer_seconds: float = 5.0
    """For the client to take the whole answer."""
    requests_per_second: float | None = 20
    """None: not counted."""
    burst: int = 40
