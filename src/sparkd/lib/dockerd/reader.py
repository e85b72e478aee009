"""The read-only face of dockerd, and the errors of this package."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from sparkd.lib.dockerd.client import APIClient, SdkClient

SOCKET = "/run/docker.sock"
TIMEOUT_SECONDS = 10.0
MISSING, CONFLICT, FAILED = 404, 409, 500
"""Status of HTTP: no such container or image; another action is under way, or the name is taken; dockerd failed."""


class DockerError(Exception):
    """dockerd refused, failed or did not answer; the text is the reason, in dockerd's own words where it gave any."""

    def __init__(self, reason: str, status: int = 0) -> None:
        super().__init__(reason)
        self.status = status
        """Of HTTP; 0 where there was no answer, or one that is not docker's."""

    @property
    def brief(self) -> str:
        return f"HTTP {self.status}" if self.status else str(self)


class DockerUnreadableError(DockerError):
    """dockerd runs, but there is no answer of docker's API, or one of failure."""


class DockerUnansweredError(DockerUnreadableError):
    """No whole answer: refused, broken off or too late."""


class ImageReader(Protocol):
    """What identifies an image; the docker of another node has this much."""

    def image(self, ref: str) -> object: ...


class DockerReader:
    """Answers of dockerd as unchecked JSON, for one thread. Each question raises DockerUnreadableError."""

    def __init__(self, client: SdkClient) -> None:
        self._client = client

    def containers(self) -> object:
        """The list of all containers, running or not."""
        return self._answer("/containers/json", lambda api: api.containers(all=True))

    def container(self, container_id: str) -> object:
        """The description of one; None where there is none."""
        return self._answer(f"/containers/{container_id}/json", lambda api: api.inspect_container(container_id))

    def image(self, ref: str) -> object:
        """The description of one; None where there is none."""
        return self._answer(f"/images/{ref}/json", lambda api: api.inspect_image(ref))

    def version(self) -> object:
        return self._answer("/version", lambda api: api.version())

    def info(self) -> object:
        return self._answer("/info", lambda api: api.info())

    def close(self) -> None:
        """Close its connections; a later question opens another."""
        self._client.close()

    def _answer(self, path: str, work: Callable[[APIClient], object]) -> object:
        try:
            return self._ask(path, work)
        except DockerUnreadableError as error:
            if error.status == MISSING:
                return None
            raise type(error)(f"GET {path}: {error.brief}", error.status) from None

    def _ask(self, _path: str, work: Callable[[APIClient], object]) -> object:
        return self._client.call(work)


class CachedReader(DockerReader):
    """Asks each question once, all within `seconds`. A docker that did not answer is asked nothing more."""

    def __init__(self, docker: DockerReader, seconds: float) -> None:
        super().__init__(docker._client)
        self._seconds = self._left = seconds
        self._known: dict[str, object] = {}
        """By path: the answer, or the error in its place."""
        self._lost: DockerUnansweredError | None = None

    def _ask(self, path: str, work: Callable[[APIClient], object]) -> object:
        if path not in self._known:
            self._known[path] = self._lost or self._ask_in_time(work)
        found = self._known[path]
        if isinstance(found, DockerError):
            raise found
        return found

    def _ask_in_time(self, work: Callable[[APIClient], object]) -> object:
        began = time.monotonic()
        try:
            return self._client.call(work, max(self._left, 0.001))
        except DockerUnansweredError as error:
            late = time.monotonic() - began >= self._left
            self._lost = DockerUnansweredError(f"no answer within {self._seconds:g} s") if late else error
            return self._lost
        except DockerError as error:
            return error
        finally:
            self._left -= time.monotonic() - began


def connect(socket_path: str = SOCKET, seconds: float = TIMEOUT_SECONDS) -> DockerReader:
    """A reader of the living dockerd, which waits so long at each read. It connects at the first question."""
    from sparkd.lib.dockerd.client import SdkClient

    return DockerReader(SdkClient(socket_path, seconds))


def recorded(read: Callable[[str], bytes]) -> DockerReader:
    """A reader of recorded answers: `read(name)` gives the body of PATH.json, or of PATH.500.json where docker failed.

    It raises FileNotFoundError or NotADirectoryError for what was not recorded: dockerd then knows no such thing.
    """
    from sparkd.lib.dockerd.client import RecordedTransport, SdkClient

    return DockerReader(SdkClient(SOCKET, TIMEOUT_SECONDS, RecordedTransport(read)))
