"""The read-only face of dockerd, and its errors. The SDK is not imported here."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol
from urllib.parse import quote

SOCKET = "/run/docker.sock"
TIMEOUT_SECONDS = 10.0
CONTAINERS, VERSION, INFO = "/containers/json", "/version", "/info"


class DockerError(Exception):
    """dockerd refused, failed or did not answer; the text is the reason."""


class DockerMissingError(DockerError):
    """dockerd knows no such container or image."""


class DockerConflictError(DockerError):
    """Another action is under way on it, or its name is taken: HTTP 409."""


class DockerUnreadableError(DockerError):
    """dockerd runs but did not answer, or its answer is not docker's API."""


class DockerFailedError(DockerUnreadableError):
    """dockerd answered that it failed: HTTP 500."""


class DockerUnansweredError(DockerUnreadableError):
    """No whole answer: refused, broken off, too long or too late. `reason` leaves out the question."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"GET {path}: {reason}")
        self.reason = reason


class ImageReader(Protocol):
    """What identifies an image; the docker of another node has this much."""

    def image(self, ref: str, seconds: float = TIMEOUT_SECONDS) -> object: ...


class DockerReader(ImageReader, Protocol):
    """Answers of dockerd as unchecked JSON, for one thread. Each raises DockerUnreadableError within `seconds`."""

    def containers(self, seconds: float = TIMEOUT_SECONDS) -> object:
        """The list of all containers, running or not."""

    def container(self, container_id: str, seconds: float = TIMEOUT_SECONDS) -> object:
        """The description of one; None where there is none."""

    def image(self, ref: str, seconds: float = TIMEOUT_SECONDS) -> object:
        """The description of one; None where there is none."""

    def version(self, seconds: float = TIMEOUT_SECONDS) -> object: ...

    def info(self, seconds: float = TIMEOUT_SECONDS) -> object: ...

    def close(self) -> None: ...


def container_path(container_id: str, what: str = "json") -> str:
    return f"/containers/{quote(container_id, safe='')}/{what}"


def image_path(ref: str) -> str:
    return f"/images/{quote(ref, safe='/:@')}/json"


def connect(socket_path: str = SOCKET) -> DockerReader:
    """A reader of the living dockerd. It connects at the first question."""
    from sparkd.lib.dockerd.client import SdkReader
    from sparkd.lib.dockerd.transport import SocketTransport

    return SdkReader(SocketTransport(socket_path))


def recorded(read: Callable[[str], bytes]) -> DockerReader:
    """A reader of recorded answers: `read(name)` gives the body of PATH.json, or of PATH.500.json where docker failed.

    It raises FileNotFoundError or NotADirectoryError for what was not recorded: dockerd then knows no such thing.
    """
    from sparkd.lib.dockerd.client import SdkReader
    from sparkd.lib.dockerd.transport import RecordedTransport

    return SdkReader(RecordedTransport(read))
