"""The SDK's client, what it raises in words, and the read-only face."""

from __future__ import annotations

from collections.abc import Callable
from http.client import HTTPException, IncompleteRead, RemoteDisconnected
from typing import TypeVar

from sparkd.lib.dockerd.reader import (
    CONTAINERS,
    INFO,
    SOCKET,
    TIMEOUT_SECONDS,
    VERSION,
    DockerFailedError,
    DockerUnansweredError,
    DockerUnreadableError,
    container_path,
    image_path,
)
from sparkd.lib.dockerd.sdk import APIClient, APIError, DockerException, HTTPError, NotFound
from sparkd.lib.dockerd.transport import Transport

T = TypeVar("T")

API_VERSION = "1.44"
"""docker 25 to 29 have it, and 29 has no older one. For all others see `SdkClient.call`."""
UNSUPPORTED = "supported API version is"
"""dockerd's words with HTTP 400, behind Minimum or Maximum (daemon/server/middleware/version.go)."""
UNANSWERED = (OSError, HTTPError, HTTPException)
"""requests' errors are OSErrors. urllib3's come from streams, http.client's from a server that is none of HTTP."""
MALFORMED = (DockerException, KeyError, TypeError, ValueError, RecursionError)
"""The SDK takes the body of an error for an object with a message."""
STREAM_SECONDS = 300
"""For the beginning of a stream: dockerd gathers the layers of a large image first."""


class SdkClient:
    """For one thread. It connects at the first call: the API version is fixed."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self._api = self._connect(API_VERSION)

    def call(self, work: Callable[[APIClient], T], seconds: float | None) -> T:
        """Within `seconds`; None: the work opens a stream. Raises what the SDK raises.

        A docker without this API version is asked for its own, once.
        """
        self._transport.limit(seconds)
        try:
            return work(self._api)
        except APIError as error:
            if error.status_code != 400 or UNSUPPORTED not in str(error.explanation):
                raise
            self._api = self._connect(str(self._api.version(api_version=False)["ApiVersion"]))
            return work(self._api)

    def close(self) -> None:
        self._api.close()

    def _connect(self, version: str) -> APIClient:
        api = APIClient(f"unix://{SOCKET}", version=version, timeout=STREAM_SECONDS)
        api.mount("http+docker://", self._transport)
        api.trust_env = False  # no proxy, no ~/.netrc
        api.headers["Accept-Encoding"] = "identity"  # what is packed may unfold to a thousand times its size
        return api


class SdkReader:
    """`reader.DockerReader` by the SDK."""

    def __init__(self, transport: Transport) -> None:
        self._client = SdkClient(transport)

    def containers(self, seconds: float = TIMEOUT_SECONDS) -> object:
        return self._answer(CONTAINERS, seconds, lambda api: api.containers(all=True))

    def container(self, container_id: str, seconds: float = TIMEOUT_SECONDS) -> object:
        return self._answer(container_path(container_id), seconds, lambda api: api.inspect_container(container_id))

    def image(self, ref: str, seconds: float = TIMEOUT_SECONDS) -> object:
        return self._answer(image_path(ref), seconds, lambda api: inspect_image(api, ref))

    def version(self, seconds: float = TIMEOUT_SECONDS) -> object:
        return self._answer(VERSION, seconds, lambda api: api.version())

    def info(self, seconds: float = TIMEOUT_SECONDS) -> object:
        return self._answer(INFO, seconds, lambda api: api.info())

    def close(self) -> None:
        self._client.close()

    def _answer(self, path: str, seconds: float, work: Callable[[APIClient], object]) -> object:
        try:
            return self._client.call(work, seconds)
        except NotFound:
            return None
        except APIError as error:
            failed = DockerFailedError if error.status_code == 500 else DockerUnreadableError
            raise failed(f"GET {path}: HTTP {error.status_code}") from None
        except ValueError:
            raise DockerUnreadableError(f"GET {path}: not JSON") from None
        except UNANSWERED as error:
            raise DockerUnansweredError(path, reason(error, seconds)) from None
        except MALFORMED:
            raise DockerUnreadableError(f"GET {path}: not as docker's") from None


def inspect_image(api: APIClient, ref: str) -> dict[str, object]:
    found: dict[str, object] = api.inspect_image(ref)  # type: ignore[no-untyped-call]  # types-docker has none for it
    return found


def reason(error: BaseException, seconds: float | None = None) -> str:
    """Why there is no answer: dockerd's own words, or the error below those of requests and urllib3."""
    if isinstance(error, APIError) and error.explanation:
        return " ".join(str(error.explanation).split())
    while error.__context__ is not None:
        if isinstance(error, IncompleteRead | RemoteDisconnected):
            break
        error = error.__context__
    if isinstance(error, TimeoutError):
        return "no answer" if seconds is None else f"no answer within {seconds:g} s"
    if isinstance(error, IncompleteRead | RemoteDisconnected):
        return "the server closed the connection before the end of its answer"
    return " ".join(str(error).split()) or type(error).__name__
