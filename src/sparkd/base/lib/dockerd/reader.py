"""Read access to dockerd: its answers, a container's log, and the error of this package. The SDK is imported at the
first connection, since that takes time and memory.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from datetime import datetime
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any

from sparkd.base.lib.text import parse_json

if TYPE_CHECKING:
    from sparkd.base.lib.dockerd.client import APIClient, SdkClient

SOCKET = "/run/docker.sock"
TIMEOUT_SECONDS = 10.0
MISSING, CONFLICT, FAILED = 404, 409, 500
"""HTTP status: no such container or image; another action in progress, or the name is taken; dockerd failed."""
FORBIDDEN = "only root and the group docker may use it"  # in a DockerError where this user may not connect
FRAME = struct.Struct(">BxxxL")
"""Stream number and length of each piece of a log."""
FRAME_LIMIT_BYTES = 16 << 20
"""dockerd's pieces are log messages of at most 16 KiB; more is not docker."""


class DockerError(Exception):
    """dockerd refused, failed or did not answer; the text is dockerd's own reason if there is one."""

    def __init__(self, reason: str, status: int = 0) -> None:
        super().__init__(reason)
        self.status = status
        """HTTP status; 0 without an answer of docker."""


class DockerReader:
    """dockerd's answers as unchecked JSON, for one thread. Each is requested once and kept, except a container's.

    It connects at the first request. All requests together have `seconds`. Methods raise DockerError.
    """

    def __init__(self, client: SdkClient, seconds: float) -> None:
        self._client = client
        self._seconds = self._left = seconds
        self.answers: dict[str, object] = {}
        """Each answer, or its error, by target: the request's path. No local here is named `path`, since a docker that
        hangs would then be reported as a file that hangs (`event_loop.find_path`)."""

    def containers(self) -> object:
        return self._get("/containers/json", lambda api: api.containers(all=True))

    def container(self, container_id: str) -> object:
        """The current description of a container; None where there is no such container."""
        target = f"/containers/{container_id}/json"
        self.answers.pop(target, None)
        return self._get(target, lambda api: api.inspect_container(container_id))

    def images(self) -> object:
        return self._get("/images/json", lambda api: api.images())

    def image(self, ref: str) -> object:
        return self._get(f"/images/{ref}/json", lambda api: api.inspect_image(ref))

    def version(self) -> object:
        return self._get("/version", lambda api: api.version())

    def info(self) -> object:
        return self._get("/info", lambda api: api.info())

    def events(self, container_id: str, since: float, until: float) -> object:
        """Events of a container, oldest first (wall clock). dockerd keeps 256, and answers once `until` has come."""
        filters = {"type": "container", "container": container_id}
        times: tuple[Any, Any] = f"{since:.6f}", f"{until:.6f}"  # dockerd takes fractions; the SDK declares int
        return self._get("/events", lambda api: list(islice(api.events(*times, filters, decode=True), 256)))

    def close(self) -> None:
        self._client.close()

    def _get(self, target: str, work: Callable[[APIClient], object]) -> object:
        """The kept answer, or a new one; None for HTTP 404."""
        if target not in self.answers:
            self.answers[target] = self._request(target, work)
        answer = self.answers[target]
        if not isinstance(answer, DockerError):
            return answer
        if answer.status == MISSING:
            return None
        reason = f"HTTP {answer.status}" if answer.status else str(answer)
        raise DockerError(f"GET {target}: {reason}", answer.status)

    def _request(self, _target: str, work: Callable[[APIClient], object]) -> object:
        """The answer, or its error. After the deadline nothing is sent."""
        deadline = time.monotonic() + self._left
        try:
            if self._left > 0:
                return self._client.call(work, self._left)
        except DockerError as error:
            if time.monotonic() < deadline:
                return error
        finally:
            self._left = deadline - time.monotonic()
        return DockerError(f"no answer within {self._seconds:g} s")


class RecordedReader(DockerReader):
    """Answers of a tree of files: `read(name)` is the body of PATH.json, or of PATH.500.json where docker failed."""

    def __init__(self, read: Callable[[str], bytes]) -> None:
        self._read = read
        self.answers = {}

    def close(self) -> None: ...

    def _request(self, target: str, _work: Callable[[APIClient], object]) -> object:
        try:
            with suppress(FileNotFoundError, NotADirectoryError):
                return parse_json(self._read(f"{target}.json"))
            self._read(f"{target}.500.json")
        except (FileNotFoundError, NotADirectoryError):
            return DockerError("not recorded", MISSING)
        except (OSError, ValueError) as error:
            return DockerError(str(error))
        return DockerError("recorded as failed", FAILED)


def connect(socket_path: str = SOCKET, seconds: float = TIMEOUT_SECONDS) -> DockerReader:
    """A reader of the running dockerd."""
    from sparkd.base.lib.dockerd.client import SdkClient

    return DockerReader(SdkClient(socket_path, seconds), seconds)


def follow_log(container_id: str, since: str, socket_path: str = SOCKET) -> Iterator[tuple[int, bytes]]:
    """(stream, stamp and bytes) from `since` on until the container ends: 1 is stdout, 2 stderr.

    `since`: "0" for the whole log, or `since_of` a piece, which then comes again. It waits for more without a limit.
    Raises DockerError, also where dockerd stops.

    The SDK's own logs() leaves out the stream number, without which pieces of long lines of both streams would be
    joined, and takes a broken connection for the end of the log.
    """
    from sparkd.base.lib.dockerd.client import SdkClient, docker_errors, open_log

    work = partial(open_log, container_id, since, TIMEOUT_SECONDS)
    client = SdkClient(socket_path, TIMEOUT_SECONDS)
    with closing(client), docker_errors(TIMEOUT_SECONDS), closing(client.call(work)) as answer:
        yield from frames(answer.raw.read)


def since_of(piece: bytes) -> str:
    """Docker's stamp of a piece, such as 2026-11-27T01:02:03.123456789Z, as a request names it. Raises ValueError."""
    text = piece.partition(b" ")[0].decode("ascii", "strict")
    seconds, _, rest = text.partition(".")
    nanoseconds, zone = rest[:9], rest[9:]
    if not (len(nanoseconds) == 9 and nanoseconds.isdigit() and zone):
        raise ValueError(f"{text[:40]!r} is no stamp of docker's")
    return f"{int(datetime.fromisoformat(seconds + zone).timestamp())}.{nanoseconds}"


def frames(read: Callable[[int], bytes]) -> Iterator[tuple[int, bytes]]:
    """Frames of docker's stream. `read(count)` returns fewer bytes at the end only; an incomplete frame is dropped."""
    while len(header := read(FRAME.size)) == FRAME.size:
        stream, length = FRAME.unpack(header)
        if length > FRAME_LIMIT_BYTES:
            raise DockerError(f"a log frame of {length} bytes")
        content = read(length)
        if len(content) < length:
            return
        yield stream, content
