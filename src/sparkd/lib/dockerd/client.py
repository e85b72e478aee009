"""The SDK's client for one API version, what it raises in words, and recorded answers in place of a dockerd."""

from __future__ import annotations

import io
import re
import socket
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.client import HTTPException, IncompleteRead, RemoteDisconnected
from typing import TypeVar
from urllib.parse import unquote

from sparkd.lib.dockerd.reader import DockerUnansweredError, DockerUnreadableError
from sparkd.lib.imports import without


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
    from docker.errors import DockerException
    from requests import PreparedRequest
    from requests import Response as Response
    from requests.adapters import BaseAdapter
    from urllib3.exceptions import HTTPError

T = TypeVar("T")

API_VERSION = "1.44"
"""docker 25 to 29 have it, and 29 has no older one. For all others see `SdkClient.call`."""
UNSUPPORTED = "supported API version is"
"""dockerd's words with HTTP 400, behind Minimum or Maximum (daemon/server/middleware/version.go)."""
UNANSWERED = (OSError, HTTPError, HTTPException)
"""requests' errors are OSErrors. urllib3's come from streams, http.client's from a server that is none of HTTP."""
MALFORMED = (DockerException, AttributeError, KeyError, TypeError, RecursionError)
"""The SDK takes the body of an error for an object with a message, and ~/.docker/config.json for one of objects."""

_VERSION_PREFIX = re.compile(r"/v\d+\.\d+(?=/)")


class SdkClient:
    """For one thread. It connects at the first call: the API version is fixed."""

    def __init__(self, socket_path: str, seconds: float, transport: BaseAdapter | None = None) -> None:
        self._socket_path = socket_path
        self._seconds = seconds
        self._transport = transport
        self._api: APIClient | None = None

    def call(self, work: Callable[[APIClient], T], seconds: float | None = None) -> T:
        """Wait `seconds`, or as long as always, at each read. Raises DockerError.

        A docker without this API version is asked for its own, once.
        """
        seconds = self._seconds if seconds is None else seconds
        with docker_errors(seconds):
            self._api = self._api or self._connect(API_VERSION)
            self._api.timeout = seconds  # type: ignore[assignment]  # the stub's int; requests takes a float
            try:
                return work(self._api)
            except APIError as error:
                if error.status_code != 400 or UNSUPPORTED not in str(error.explanation):
                    raise
            self._api = self._connect(str(self._api.version(api_version=False)["ApiVersion"]))
            self._api.timeout = seconds  # type: ignore[assignment]  # as above
            return work(self._api)

    def close(self) -> None:
        if self._api is not None:
            self._api.close()

    def _connect(self, version: str) -> APIClient:
        api = APIClient(f"unix://{self._socket_path}", version=version)
        api.trust_env = False  # no proxy, no ~/.netrc
        if self._transport is not None:
            api.mount("http+docker://", self._transport)
        return api


@contextmanager
def docker_errors(seconds: float | None = None) -> Iterator[None]:
    """What the SDK raises becomes a DockerError."""
    try:
        yield
    except APIError as error:
        raise DockerUnreadableError(_line(error.explanation or error), error.status_code or 0) from None
    except ValueError:
        raise DockerUnreadableError("not JSON") from None
    except UNANSWERED as error:
        raise DockerUnansweredError(_reason(error, seconds)) from None
    except MALFORMED:
        raise DockerUnreadableError("not as docker's") from None


def _reason(error: BaseException, seconds: float | None) -> str:
    """Of the error below those of requests and urllib3."""
    while isinstance(error.__context__, UNANSWERED):
        error = error.__context__
    if isinstance(error, TimeoutError):
        return "no answer" if seconds is None else f"no answer within {seconds:g} s"
    if isinstance(error, IncompleteRead | RemoteDisconnected):
        return "the server closed the connection before the end of its answer"
    return _line(error) or type(error).__name__


def _line(text: object) -> str:
    return " ".join(str(text).split())


class RecordedTransport(BaseAdapter):
    """Answers as docker did when they were recorded, whatever the query; 404 for what was not."""

    def __init__(self, read: Callable[[str], bytes]) -> None:
        super().__init__()
        self._read = read

    def send(self, request: PreparedRequest, *_args: object, **_kwargs: object) -> Response:
        path = unquote(_VERSION_PREFIX.sub("", request.path_url.partition("?")[0], count=1))
        answer = Response()
        answer.request, answer.url = request, str(request.url)
        answer.status_code, body = 404, b'{"message": "not recorded"}'
        for status, end in ((200, "json"), (500, "500.json")):
            with suppress(FileNotFoundError, NotADirectoryError):
                answer.status_code, body = status, self._read(f"{path}.{end}")
                break
        answer.raw = io.BytesIO(body)
        return answer

    def close(self) -> None: ...
