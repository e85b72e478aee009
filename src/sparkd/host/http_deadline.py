"""A whole answer by one deadline: httpx bounds each read, and whoever drips could keep a reader for ever.

The only home of httpcore, which httpx stands on.
"""

from __future__ import annotations

import ssl
import time
from collections.abc import Iterable
from dataclasses import dataclass

import httpcore
from httpcore import SOCKET_OPTION, ConnectionPool

__all__ = ["Backend", "ConnectionPool", "Deadline"]


@dataclass
class Deadline:
    """Of the request at hand, monotonic; None while there is none to keep."""

    at: float | None = None

    def bounded(self, timeout: float | None) -> float | None:
        """The seconds that one read may take. Raises httpcore.ReadTimeout where none are left."""
        if self.at is None:
            return timeout
        left = self.at - time.monotonic()
        if left <= 0:
            raise httpcore.ReadTimeout
        return left if timeout is None else min(left, timeout)


class Backend(httpcore.SyncBackend):
    """Connections whose reads keep the deadline."""

    def __init__(self, deadline: Deadline) -> None:
        self._deadline = deadline

    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[SOCKET_OPTION] | None = None,
    ) -> httpcore.NetworkStream:
        stream = super().connect_tcp(host, port, timeout, local_address, socket_options)
        return _Stream(stream, self._deadline)

    def connect_unix_socket(
        self, path: str, timeout: float | None = None, socket_options: Iterable[SOCKET_OPTION] | None = None
    ) -> httpcore.NetworkStream:
        return _Stream(super().connect_unix_socket(path, timeout, socket_options), self._deadline)


class _Stream(httpcore.NetworkStream):
    def __init__(self, stream: httpcore.NetworkStream, deadline: Deadline) -> None:
        self._stream = stream
        self._deadline = deadline

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        return self._stream.read(max_bytes, self._deadline.bounded(timeout))

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        self._stream.write(buffer, timeout)

    def close(self) -> None:
        self._stream.close()

    def start_tls(
        self, ssl_context: ssl.SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> httpcore.NetworkStream:
        raise NotImplementedError("plain HTTP alone")

    def get_extra_info(self, info: str) -> object:
        return self._stream.get_extra_info(info)
