"""The SDK's client for one API version, and its errors as DockerError."""

import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPException, IncompleteRead, RemoteDisconnected
from typing import TypeVar
from urllib.parse import quote

from sparkd.base.lib.dockerd.reader import FORBIDDEN, DockerError

# At its import urllib3 binds a port of ::1 to test for IPv6. A probe binds none.
_has_ipv6, socket.has_ipv6 = socket.has_ipv6, False
try:
    from docker import APIClient as APIClient
    from docker.errors import APIError as APIError
    from docker.errors import DockerException
    from requests import Response as Response
    from urllib3.exceptions import HTTPError
finally:
    socket.has_ipv6 = _has_ipv6

T = TypeVar("T")

API_VERSION = "1.44"
"""The oldest of docker 29; docker 25 and later have it. For others see `SdkClient.call`."""
UNSUPPORTED = "supported API version is"
"""dockerd's text with HTTP 400, behind Minimum or Maximum (daemon/server/middleware/version.go)."""
UNANSWERED = (OSError, HTTPError, HTTPException)
"""requests' errors are OSErrors; urllib3's come from streams, http.client's from a server that does not speak HTTP."""
MALFORMED = (DockerException, AttributeError, KeyError, TypeError, RecursionError)
"""The SDK expects an object with a message as an error's body, and objects in ~/.docker/config.json."""


@dataclass
class SdkClient:
    """A client for one thread. It connects at the first call."""

    socket_path: str
    seconds: float
    _api: APIClient | None = None

    def call(self, work: Callable[[APIClient], T], seconds: float | None = None) -> T:
        """Wait `seconds`, or the default, at each read. Raises DockerError.

        Where docker lacks this API version, its own is used.
        """
        seconds = seconds or self.seconds
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
        api = APIClient(f"unix://{self.socket_path}", version=version)
        api.trust_env = False  # no proxy, no ~/.netrc
        return api


@contextmanager
def docker_errors(seconds: float) -> Iterator[None]:
    """Turn the SDK's errors into DockerError. `seconds`: its timeout of each read."""
    try:
        yield
    except APIError as error:
        raise DockerError(_join_lines(error.explanation or error), error.status_code or 0) from None
    except ValueError:
        raise DockerError("not JSON") from None
    except UNANSWERED as error:
        raise DockerError(_find_reason(error, seconds)) from None
    except MALFORMED:
        raise DockerError("not as docker's") from None


def _find_reason(error: BaseException, seconds: float) -> str:
    """The reason of the error below those of requests and urllib3."""
    while isinstance(error.__context__, UNANSWERED):
        error = error.__context__
    if isinstance(error, TimeoutError):
        return f"no answer within {seconds:g} s"
    if isinstance(error, PermissionError):
        return FORBIDDEN
    if isinstance(error, IncompleteRead | RemoteDisconnected):
        return "the server closed the connection before the end of its answer"
    return _join_lines(error) or type(error).__name__


def _join_lines(text: object) -> str:
    return " ".join(str(text).split())


def open_log(container_id: str, since: str, connect_seconds: float, api: APIClient) -> Response:
    """Request a container's log as a stream, with no limit on the wait for more. `since`: see `reader.follow_log`."""
    url = f"{api.base_url}/v{api.api_version}/containers/{quote(container_id, safe='')}/logs"
    params = {"follow": "1", "stdout": "1", "stderr": "1", "tail": "all", "timestamps": "1", "since": since}
    answer = api.get(url, params=params, stream=True, timeout=(connect_seconds, None))
    status = answer.status_code
    if status != 200:
        raise APIError("", answer, answer.text if status == 400 else f"HTTP {status}")  # `call` reads that of 400
    return answer
