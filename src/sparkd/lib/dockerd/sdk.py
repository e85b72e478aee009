"""The docker SDK and the transports below it, imported without what a unix socket has no use for."""

from __future__ import annotations

import socket
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from sparkd.lib.imports import without

if TYPE_CHECKING:
    from _typeshed import FileDescriptorOrPath


@contextmanager
def _slim() -> Iterator[None]:
    """paramiko carries ssh:// only; without the two charset libraries (10 ms, 3 MiB) requests takes text for UTF-8.

    urllib3 binds a port of ::1 at its import to find out about IPv6. A probe binds none.
    """
    has_ipv6 = socket.has_ipv6
    socket.has_ipv6 = False
    try:
        with warnings.catch_warnings(), without("paramiko", "charset_normalizer", "chardet", "simplejson", "socks"):
            warnings.simplefilter("ignore")  # requests warns about the missing charset libraries
            yield
    finally:
        socket.has_ipv6 = has_ipv6


with _slim():
    from docker import APIClient as APIClient
    from docker.errors import APIError as APIError
    from docker.errors import DockerException as DockerException
    from docker.errors import NotFound as NotFound
    from docker.types import DeviceRequest as DeviceRequest
    from docker.types import LogConfig as LogConfig
    from docker.types import Mount as Mount
    from docker.types import Ulimit as Ulimit
    from docker.utils import config
    from requests import PreparedRequest as PreparedRequest
    from requests import Response as Response
    from requests.adapters import BaseAdapter as BaseAdapter
    from requests.adapters import HTTPAdapter as HTTPAdapter
    from urllib3 import HTTPConnectionPool as HTTPConnectionPool
    from urllib3.connection import HTTPConnection as HTTPConnection
    from urllib3.exceptions import HTTPError as HTTPError


def _no_config_file(config_path: FileDescriptorOrPath | None = None) -> FileDescriptorOrPath | None:  # noqa: ARG001
    """~/.docker/config.json is for root's own docker command: its proxies and headers are not the agent's."""
    return None


config.find_config_file = _no_config_file
