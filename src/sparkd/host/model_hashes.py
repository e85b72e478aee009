"""What a model's files were when they were downloaded: their SHA-256, where Hugging Face's own client has kept it.

In its cache a file is a link into `blobs`, named by the hash. In a folder that it filled (`hf download --local-dir`),
`.cache/huggingface/download/NAME.metadata` has the hash in its second line. Small files have a git hash, of 40 digits.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable
from contextlib import suppress
from hashlib import sha256

from sparkd.host.files import Files
from sparkd.host.model_folder import DOWNLOADS, SNAPSHOT

CHUNK_BYTES = 8 << 20
METADATA_LIMIT_BYTES = 4096

_SHA256 = re.compile(r"[0-9a-f]{64}")


def recorded(files: Files, folder: str, names: Iterable[str]) -> dict[str, str]:
    """SHA-256 by name, of those files whose download was told it."""
    kept = _of_link if SNAPSHOT.fullmatch(folder) else _of_metadata
    found: dict[str, str] = {}
    for name in names:
        with suppress(OSError):
            said = kept(files, folder, name)
            if _SHA256.fullmatch(said):
                found[name] = said
    return found


def _of_link(files: Files, folder: str, name: str) -> str:
    return files.link(f"{folder}/{name}").rpartition("/")[2]


def _of_metadata(files: Files, folder: str, name: str) -> str:
    lines = files.text(f"{folder}/{DOWNLOADS}/{name}.metadata", METADATA_LIMIT_BYTES).splitlines()
    return lines[1].strip() if len(lines) > 1 else ""


def computed(files: Files, path: str, told: Callable[[int], None]) -> str:
    """SHA-256 of a file; `told` gets the bytes of each piece. Raises OSError.

    What was read does not stay in the page cache, which an engine's memory would be missing from.
    """
    digest, done = sha256(), 0
    fd = os.open(files.real(path), os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
    try:
        while piece := os.read(fd, CHUNK_BYTES):
            digest.update(piece)
            os.posix_fadvise(fd, done, len(piece), os.POSIX_FADV_DONTNEED)
            done += len(piece)
            told(len(piece))
    finally:
        os.close(fd)
    return digest.hexdigest()
