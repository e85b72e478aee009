"""Downloads of models from the hub, by its own client.

The client's `snapshot_download` begins an interrupted file again from zero, so each file is fetched by the client's
`http_get`, which resumes. The records of downloaded files have the client's format, in the client's folder.
"""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from fnmatch import fnmatchcase
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, NamedTuple

from sparkd.agent.actions.shared_folders import become_owner
from sparkd.base.host.weights import DOWNLOADS
from sparkd.base.lib.errors import BlockedError
from sparkd.base.lib.text import sanitize, size
from sparkd.tools.models.hub_client import ANSWER_BYTES, DOWNLOAD_BYTES, client, fetch_until_complete, limit_memory
from sparkd.tools.models.peers import SPARE_BYTES

if TYPE_CHECKING:
    from huggingface_hub._local_folder import LocalDownloadFileMetadata
    from huggingface_hub.hf_api import RepoSibling


class RepoFile(NamedTuple):
    path: str
    size_bytes: int | None
    """None where the hub gives no size, as some mirrors do."""
    blob_hash: str = ""
    """The hub's hash, which is in the name of the partial file; empty where the hub gives none."""

    def is_in(self, folder: Path) -> bool:
        """Whether the folder has it in full size."""
        size_there = _read_size(folder / self.path)
        return size_there is not None and self.size_bytes in (None, size_there)

    def partial_bytes(self, folder: Path) -> int:
        """Size of its partial file. One of an older revision does not count: nothing resumes it."""
        from huggingface_hub._local_folder import LocalDownloadFilePaths

        record = folder / DOWNLOADS / f"{self.path}.metadata"
        name = LocalDownloadFilePaths(folder / self.path, record, record).incomplete_path(self.blob_hash).name
        start = name if self.blob_hash else name.partition(".")[0]
        partials = (path for path in record.parent.glob("*.incomplete") if path.name.startswith(start))
        return max((_read_size(path) or 0 for path in partials), default=0)


class Repo(NamedTuple):
    """A model on the hub, at one commit."""

    name: str
    commit: str
    """The commit to which the revision was resolved, so that all files are of one."""
    files: tuple[RepoFile, ...]
    """The wanted ones."""

    def missing(self, folder: Path) -> tuple[RepoFile, ...]:
        """Files that the folder does not have in full size yet."""
        return tuple(file for file in self.files if not file.is_in(folder))

    def missing_bytes(self, folder: Path) -> int | None:
        """Bytes of the missing files, without those that their partial files have; None without a size."""
        total_bytes = 0
        for file in self.missing(folder):
            if file.size_bytes is None:
                return None
            total_bytes += max(0, file.size_bytes - file.partial_bytes(folder))
        return total_bytes


def find_repo(name: str, revision: str | None, token: str | None, exclude: tuple[str, ...]) -> Repo:
    """Look up the model of that name, without the files that match a pattern of `exclude`. Raises BlockedError."""
    with client(name), limit_memory(ANSWER_BYTES):
        from huggingface_hub import HfApi

        info = HfApi(token=token).model_info(name, revision=revision, files_metadata=True, timeout=60.0)
        files = {file.path: file for file in map(_parse_file, info.siblings or ())}
    wanted = [path for path in sorted(files) if not any(fnmatchcase(path, pattern) for pattern in exclude)]
    for path in wanted:
        if path.startswith("/") or ".." in path.split("/"):
            raise BlockedError(f"{name} has a file {sanitize(path)}, which is outside of the model's folder")
    return Repo(name, str(info.sha), tuple(files[path] for path in wanted))


def _parse_file(file: RepoSibling) -> RepoFile:
    """A file of the hub's list. Raises ValueError where that has another form."""
    path, size_bytes, blob_hash = file.rfilename, file.size, file.lfs.sha256 if file.lfs else file.blob_id
    if not (isinstance(path, str) and path and b"\0" not in os.fsencode(path) and isinstance(size_bytes, int | None)):
        raise ValueError(f"a file of its list has no good name or size: {path!r}, {size_bytes!r}")
    return RepoFile(path, size_bytes, str(blob_hash or ""))


def download(repo: Repo, folder: Path, token: str | None, received: Callable[[int], None]) -> None:
    """Download the files that a folder lacks; of an interrupted file, the rest. Raises BlockedError, UsageError.

    Root continues as the folder's owner, for good: see `become_owner`. `received` gets the bytes of each piece, from
    several threads; a number below zero where a file begins again.
    """
    total_bytes = 0

    def count(size_bytes: int) -> None:
        nonlocal total_bytes
        total_bytes += size_bytes
        received(size_bytes)

    def fetch_all() -> None:
        with ThreadPoolExecutor(8) as pool:  # as many files at a time as the client's own default
            list(pool.map(lambda file: _fetch(repo, file, folder, known_token, count), repo.files))

    with client(repo.name):
        from huggingface_hub import get_token

        known_token = token or get_token() or False  # read before root becomes the owner, who can't read root's
        is_root = os.geteuid() == 0
        become_owner(folder)
        try:
            with limit_memory(DOWNLOAD_BYTES):
                fetch_until_complete(fetch_all, lambda: total_bytes)
        except PermissionError as error:
            if is_root and (uid := os.geteuid()):
                reason = f"{error.filename}: {error.strerror} for uid {uid}, who owns the model's folder"
                raise BlockedError(reason, f"sudo chown -hR {uid}: {quote(str(folder))}") from None
            raise
    if missing := repo.missing(folder):
        hint = "run it again; where that does not help, move the file away before"
        raise BlockedError(f"{folder}: {sanitize(missing[0].path)} is not as large as the hub has it", hint)


def _fetch(repo: Repo, file: RepoFile, folder: Path, token: str | bool, received: Callable[[int], None]) -> None:
    """Fetch a file that the folder lacks. Its address is resolved each time, since a signed one expires in an hour."""
    from huggingface_hub import get_hf_file_metadata, hf_hub_url
    from huggingface_hub._local_folder import get_local_download_paths, read_download_metadata, write_download_metadata
    from huggingface_hub.utils._fixes import WeakFileLock

    # A file that a power cut has shortened still has a valid record, so its size is compared first.
    record = read_download_metadata(folder, file.path) if file.is_in(folder) else None
    if record and record.commit_hash == repo.commit:
        return
    url = hf_hub_url(repo.name, file.path, revision=repo.commit)
    remote = get_hf_file_metadata(url, token=token)
    if not remote.etag or "/" in remote.etag:  # it is in the partial file's name
        raise ValueError(f"there is no good ETag for {file.path}")
    local = get_local_download_paths(folder, file.path)
    with WeakFileLock(local.lock_path):
        # Compared under the lock: another pull may just have fetched the file.
        if not _has_content(local.file_path, record, remote.etag):
            local.file_path.unlink(missing_ok=True)  # of another revision; a mix of two would pass for a model
            partial = local.incomplete_path(remote.etag)
            size_there = _read_size(partial) or 0
            if remote.size is not None and size_there > remote.size:
                size_there = 0  # it begins again
            most_bytes = remote.size if file.size_bytes is None else file.size_bytes
            count = limit_bytes(received, local.file_path, most_bytes, size_there)
            _append(url, partial, size_there, remote.size, token, count)
            partial.replace(local.file_path)
    write_download_metadata(folder, file.path, repo.commit, remote.etag)


def _append(
    url: str, partial: Path, size_there: int, full_bytes: int | None, token: str | bool, count: Callable[[int], None]
) -> None:
    """Fetch what a partial file lacks behind its `size_there` bytes, 0 for all. `full_bytes`: None where not known."""
    from huggingface_hub.file_download import http_get
    from huggingface_hub.utils._headers import build_hf_headers
    from huggingface_hub.utils.tqdm import silent_tqdm

    class Bar(silent_tqdm):
        def __init__(self, *, initial: int, **_options: object) -> None:
            count(initial - size_there)  # a server that knows no ranges sends all of it again

        def update(self, n: float | None = 1) -> None:
            count(int(n or 0))

    headers = build_hf_headers(token=token)
    with partial.open("ab" if size_there else "wb") as file:
        http_get(url, file, resume_size=size_there, headers=headers, expected_size=full_bytes, tqdm_class=Bar)


def limit_bytes(
    received: Callable[[int], None], path: Path, most_bytes: int | None, size_there: int = 0
) -> Callable[[int], None]:
    """`received`, until the file has more than `most_bytes`, or its disk no more to spare. Then ValueError, OSError.

    What is unpacked, or has no size, may have no end; and others may fill the disk meanwhile.
    """

    def count(size_bytes: int) -> None:
        nonlocal size_there
        size_there += size_bytes
        if most_bytes is not None and size_there > most_bytes:
            raise ValueError(f"{path} has more than its {most_bytes} bytes")
        if shutil.disk_usage(path.parent).free < SPARE_BYTES:
            raise OSError(errno.ENOSPC, f"its disk has less than {size(SPARE_BYTES)} free", str(path))
        received(size_bytes)

    return count


def _has_content(path: Path, record: LocalDownloadFileMetadata | None, etag: str) -> bool:
    """Whether the file has the content of this ETag, by its record or, without a valid one, by its SHA-256."""
    if record or len(etag) != 64 or not path.is_file():
        return record is not None and record.etag == etag
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest() == etag


def _read_size(path: Path) -> int | None:
    try:
        return path.stat().st_size
    except OSError:
        return None
