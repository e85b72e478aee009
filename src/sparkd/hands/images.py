"""Images, written to a file and told of by another node. Loading is that node's docker's own."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

import docker
from docker.errors import DockerException
from msgspec import Struct

from sparkd.errors import BlockedError
from sparkd.hands.files import sync_folder
from sparkd.hands.peer import Peer
from sparkd.host.docker import SOCKET
from sparkd.host.harmless import harmless

SILENCE_SECONDS = 300
"""Of docker, while it gathers the layers of a large image."""
CHUNK_BYTES = 4 << 20
_UNKNOWN = ("no such image", "no such object")


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """One at a time: two would write one file, and each remove what the other sends. Raises BlockedError."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        raise BlockedError(f"{folder}: {error.strerror}", f"ls -ld {folder}") from None
    try:
        # The folder itself: a file would be left behind. NFS locks no folder.
        with suppress(OSError):
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise BlockedError("another `sparkd image sync` is under way here", "let it end first") from None
        yield
    finally:
        os.close(fd)


def save(ref: str, file: Path, told: Callable[[int], None]) -> None:
    """Write what `docker load` reads, whole or not at all; `told` gets the bytes of each piece. Raises BlockedError."""
    part = file.with_suffix(".part")
    try:
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        client = docker.APIClient(base_url=f"unix://{SOCKET}", timeout=SILENCE_SECONDS)
        with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600), "wb") as written:
            for piece in client.get_image(ref, chunk_size=CHUNK_BYTES):
                written.write(piece)
                told(len(piece))
            written.flush()
            os.fsync(written.fileno())
        part.replace(file)
        sync_folder(file.parent)
    except (DockerException, OSError) as error:
        raise BlockedError(
            f"{ref} can't be written to {file}: {harmless(str(error))}", f"df -h {file.parent}"
        ) from None
    finally:
        part.unlink(missing_ok=True)


def remove(file: Path) -> None:
    """A file that `save` wrote; gone is fine."""
    file.unlink(missing_ok=True)


class Reply(Struct, frozen=True):
    status: int
    body: bytes


class PeerDocker(Struct, frozen=True):
    """The docker of another node, asked for images by its own command, as `host.docker` asks this node's.

    In the time that ssh gets for anything: the asker's is for a socket of this node, and a login may take longer.
    """

    peer: Peer

    def get(self, path: str, timeout_seconds: float, params: Mapping[str, str] | None = None) -> Reply:  # noqa: ARG002
        ref = path.removeprefix("/images/").removesuffix("/json")
        words = ("docker", "image", "inspect", "--format", "{{json .}}", "--", ref)
        ended = self.peer.run(*words)
        if ended.code == 0:
            return Reply(200, ended.answer.encode())
        if any(said in ended.trouble.lower() for said in _UNKNOWN):
            return Reply(404, b"")
        raise self.peer.failed(ended)

    def close(self) -> None:
        """Nothing is held."""
