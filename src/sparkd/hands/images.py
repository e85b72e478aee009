"""Images, written to a file and told of by another node. Loading is that node's docker's own."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from msgspec import Struct

from sparkd.errors import BlockedError
from sparkd.hands.files import sync_folder
from sparkd.hands.peer import Peer
from sparkd.lib.dockerd.engine import DockerEngine
from sparkd.lib.dockerd.reader import DockerError, DockerUnreadableError
from sparkd.lib.text import sanitize

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
        with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600), "wb") as written:
            for piece in DockerEngine().save_image(ref):
                written.write(piece)
                told(len(piece))
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


def remove(file: Path) -> None:
    """A file that `save` wrote; gone is fine."""
    file.unlink(missing_ok=True)


class PeerDocker(Struct, frozen=True):
    """The docker of another node, read by its own command as this node's is by `lib.dockerd`."""

    peer: Peer

    def image(self, ref: str) -> object:
        """Raises BlockedError, and DockerUnreadableError where the answer is not JSON."""
        words = ("docker", "image", "inspect", "--format", "{{json .}}", "--", ref)
        ended = self.peer.run(*words)
        if ended.code == 0:
            try:
                found: object = json.loads(ended.answer)
            except ValueError:
                raise DockerUnreadableError(f"GET /images/{ref}/json: not JSON") from None
            return found
        if any(words in ended.trouble.lower() for words in _UNKNOWN):
            return None
        raise self.peer.failed(ended)
