"""The acting face of dockerd."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from sparkd.lib.dockerd.client import SdkClient, docker_errors
from sparkd.lib.dockerd.reader import CONFLICT, MISSING, SOCKET, DockerError

TIMEOUT_SECONDS = 120.0
"""For dockerd's answer to create and start: a first start after boot on a loaded machine takes tens of seconds."""
STREAM_SECONDS = 300.0
"""For the beginning of an archive: dockerd gathers the layers of a large image first."""
CHUNK_BYTES = 4 << 20


class DockerEngine:
    """For one thread at a time. Every method raises DockerError. It connects at the first call."""

    def __init__(self, socket_path: str = SOCKET) -> None:
        self._call = SdkClient(socket_path, TIMEOUT_SECONDS).call

    def image_id(self, ref: str) -> str:
        """The full id."""
        return self._call(lambda api: str(api.inspect_image(ref)["Id"]))

    def create(self, name: str, body: Mapping[str, object]) -> str:
        """The id of the new container, which is not started. `body` is that of POST /containers/create."""
        return self._call(lambda api: str(api.create_container_from_config(body, name)["Id"]))

    def start(self, container_id: str) -> None:
        self._call(lambda api: api.start(container_id))

    def pid(self, container_id: str) -> int:
        """Of the container's init, in the host's namespace; 0 where it does not run."""
        return self._call(lambda api: int(api.inspect_container(container_id)["State"]["Pid"]))

    def log_tail(self, container_id: str, lines: int) -> bytes:
        """The last lines that an ended container wrote, both streams."""
        return self._call(lambda api: api.logs(container_id, tail=lines))

    def stop(self, container_id: str, grace_seconds: int) -> None:
        """SIGTERM, grace, SIGKILL; gone is fine."""
        with _fine(MISSING):
            self._call(lambda api: api.stop(container_id, timeout=grace_seconds), TIMEOUT_SECONDS + grace_seconds)

    def remove(self, container_id: str) -> None:
        """Remove it, killed if it still runs; gone is fine, and so is another removal under way."""
        with _fine(MISSING, CONFLICT):
            self._call(lambda api: api.remove_container(container_id, force=True))

    def save_image(self, ref: str) -> Iterator[bytes]:
        """The archive that `docker load` reads, in pieces."""
        self.image_id(ref)  # settles the API version, which a stream can't, and that it is there
        with docker_errors():
            yield from self._call(lambda api: api.get_image(ref, chunk_size=CHUNK_BYTES), STREAM_SECONDS)


@contextmanager
def _fine(*statuses: int) -> Iterator[None]:
    try:
        yield
    except DockerError as error:
        if error.status not in statuses:
            raise
