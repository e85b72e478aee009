"""Images: saved to a file here, inspected on another node."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from sparkd.actions.files import sync_folder
from sparkd.actions.ssh import SshHost
from sparkd.lib.dockerd.client import SdkClient, docker_errors
from sparkd.lib.dockerd.reader import SOCKET, DockerError
from sparkd.lib.errors import BlockedError
from sparkd.lib.text import sanitize

STREAM_SECONDS = 300.0
"""For the beginning of an archive: dockerd gathers the layers of a large image first."""
CHUNK_BYTES = 4 << 20
_UNKNOWN = ("no such image", "no such object")


@contextmanager
def lock_scratch(folder: Path) -> Iterator[None]:
    """Allow one copy at a time: two would write and remove the same file. Raises BlockedError."""
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


def save(ref: str, file: Path, received: Callable[[int], None]) -> None:
    """Write what `docker load` reads, whole or not at all; `received` gets each piece's size. Raises BlockedError."""
    part = file.with_suffix(".part")
    try:
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600), "wb") as written:
            for piece in read_archive(ref):
                written.write(piece)
                received(len(piece))
            written.flush()
            os.fsync(written.fileno())
        part.replace(file)
        sync_folder(file.parent)
    except (DockerError, OSError) as error:
        raise BlockedError(
            f"{ref} can't be written to {file}: {sanitize(str(error))}", f"df -h {file.parent}"
        ) from None
    finally:
        part.unlink(missing_ok=True)


def read_archive(ref: str, socket_path: str = SOCKET) -> Iterator[bytes]:
    """What `docker load` reads, in pieces. Raises DockerError."""
    client = SdkClient(socket_path, STREAM_SECONDS)
    client.call(lambda api: api.inspect_image(ref))  # finds the API version, which a stream can't, and a missing image
    with docker_errors(STREAM_SECONDS):
        yield from client.call(lambda api: api.get_image(ref, chunk_size=CHUNK_BYTES))


def remove(file: Path) -> None:
    """A file that `save` wrote; gone is fine."""
    file.unlink(missing_ok=True)


def inspect_on_peer(peer: SshHost, ref: str) -> object:
    """The description of another node's image; None where it has none.

    Raises BlockedError, and DockerError where the answer is not JSON.
    """
    ended = peer.run("docker", "image", "inspect", "--format", "{{json .}}", "--", ref)
    if ended.code == 0:
        try:
            found: object = json.loads(ended.answer)
        except ValueError:
            raise DockerError(f"GET /images/{ref}/json: not JSON") from None
        return found
    if any(words in ended.trouble.lower() for words in _UNKNOWN):
        return None
    raise peer.failed(ended)
