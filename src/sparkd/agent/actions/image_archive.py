"""Saves an image as a file for another node."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from sparkd.agent.actions.files import sync_folder
from sparkd.agent.actions.shared_folders import find_shared
from sparkd.base.lib.dockerd.client import SdkClient, docker_errors
from sparkd.base.lib.dockerd.reader import SOCKET, DockerError
from sparkd.base.lib.errors import BlockedError
from sparkd.base.lib.lock import try_lock
from sparkd.base.lib.text import sanitize

STREAM_SECONDS = 300.0
"""Limit for the beginning of an archive: dockerd gathers the layers of a large image first."""


@contextmanager
def lock_scratch(folder: Path) -> Iterator[None]:
    """Allow one copy at a time: two would write and remove the same file. Raises BlockedError."""
    if writable := find_shared(folder):
        raise BlockedError(
            f"others than root may write to {writable}, on the way to {folder}", "sudo -H sparkd image sync"
        )
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        raise BlockedError(f"{folder}: {error.strerror}", f"ls -ld {folder}") from None
    try:
        # The lock is on the folder itself: a lock file would be left behind. On NFS no folder can be locked.
        with suppress(OSError):
            if not try_lock(fd):
                raise BlockedError("another `sparkd image sync` is under way here", "let it end first")
        yield
    finally:
        os.close(fd)


def save(ref: str, file: Path, received: Callable[[int], None]) -> None:
    """Save an image for `docker load`, whole or not at all. `received` gets each piece's size. Raises BlockedError."""
    part = file.with_suffix(".part")
    try:
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600), "wb") as archive:
            for piece in read_archive(ref):
                archive.write(piece)
                received(len(piece))
            archive.flush()
            os.fsync(archive.fileno())
        part.replace(file)
        sync_folder(file.parent)
    except (DockerError, OSError) as error:
        reason = f"{ref} can't be written to {file}: {sanitize(str(error))}"
        raise BlockedError(reason, f"df -h {file.parent}") from None
    finally:
        part.unlink(missing_ok=True)


def read_archive(ref: str, socket_path: str = SOCKET) -> Iterator[bytes]:
    """An image's archive, as `docker load` reads it, in pieces. Raises DockerError."""
    client = SdkClient(socket_path, STREAM_SECONDS)
    client.call(lambda api: api.inspect_image(ref))  # finds the API version, which a stream can't, and a missing image
    with docker_errors(STREAM_SECONDS):
        yield from client.call(lambda api: api.get_image(ref, chunk_size=4 << 20))
