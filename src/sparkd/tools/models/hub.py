"""Downloads of models from the hub, by its own client. Only this module imports huggingface_hub.

The client's `snapshot_download` begins an interrupted file again from zero, so each file is fetched by the client's
`http_get`, which resumes. The records of downloaded files have the client's format, in the client's folder.
"""

from __future__ import annotations

import errno
import hashlib
import logging
import os
import resource
import shutil
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from fnmatch import fnmatchcase
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, NamedTuple

from sparkd.agent.actions.shared_folders import SharedFolderError, become_owner
from sparkd.base.host.weights import DOWNLOADS
from sparkd.base.lib import without
from sparkd.base.lib.errors import BlockedError
from sparkd.base.lib.text import sanitize, size
from sparkd.tools.models.peers import SPARE_BYTES

if TYPE_CHECKING:
    from huggingface_hub._local_folder import LocalDownloadFileMetadata

_MAX_VAIN_TRIES = 3
"""Tries in a row without a new byte. The client itself tries again only after some kinds of broken connections."""
_AGAIN = "run it again: it resumes"
_ANSWER_BYTES = 256 << 20
"""Memory for the list of a model's files: the client reads it whole, and 0.3 MB on the wire may be 300 MiB (seen)."""


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
    with _client(name):
        from huggingface_hub import HfApi

        with _limit_memory():
            info = HfApi(token=token).model_info(name, revision=revision, files_metadata=True, timeout=60.0)
        files = {
            file.rfilename: RepoFile(file.rfilename, file.size, (file.lfs.sha256 if file.lfs else file.blob_id) or "")
            for file in info.siblings or ()
            if not any(fnmatchcase(file.rfilename, pattern) for pattern in exclude)
        }
    for path in files:
        if path.startswith("/") or ".." in path.split("/"):
            raise BlockedError(f"{name} has a file {sanitize(path)}, which is outside of the model's folder")
    return Repo(name, str(info.sha), tuple(files[path] for path in sorted(files)))


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

    with _client(repo.name):
        from huggingface_hub import get_token

        known_token = token or get_token() or False  # read before root becomes the owner, who can't read root's
        is_root = os.geteuid() == 0
        become_owner(folder)
        try:
            _fetch_until_complete(fetch_all, lambda: total_bytes)
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
    if not remote.etag:
        raise ValueError(f"there is no ETag for {file.path}")
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
        def update(self, n: float | None = 1) -> None:
            count(int(n or 0))

    headers = build_hf_headers(token=token)
    with partial.open("ab" if size_there else "wb") as file:
        http_get(url, file, resume_size=size_there, headers=headers, expected_size=full_bytes, tqdm_class=Bar)


def limit_bytes(
    received: Callable[[int], None], path: Path, most_bytes: int | None, size_there: int = 0
) -> Callable[[int], None]:
    """`received`, until the file has more than `most_bytes`, or its disk has no more to spare where they are None.

    Then ValueError: what is unpacked, or has no size, may have no end.
    """

    def count(size_bytes: int) -> None:
        nonlocal size_there
        size_there += size_bytes
        if most_bytes is not None and size_there > most_bytes:
            raise ValueError(f"{path} has more than its {most_bytes} bytes")
        if most_bytes is None and shutil.disk_usage(path.parent).free < SPARE_BYTES:
            raise ValueError(f"{path} has no size at the hub, and its disk has less than {size(SPARE_BYTES)} free")
        received(size_bytes)

    return count


def _has_content(path: Path, record: LocalDownloadFileMetadata | None, etag: str) -> bool:
    """Whether the file has the content of this ETag, by its record or, without a valid one, by its SHA-256."""
    if record or len(etag) != 64 or not path.is_file():
        return record is not None and record.etag == etag
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest() == etag


def _fetch_until_complete(fetch: Callable[[], object], count_received: Callable[[], int]) -> None:
    """Fetch again after every connection that breaks off, as long as some bytes come between two breaks.

    A refusal, too, is tried again after some bytes: the address of a file may have expired.
    """
    from huggingface_hub.errors import HfHubHTTPError

    bytes_before, vain_tries = count_received(), 0
    while vain_tries < _MAX_VAIN_TRIES:
        try:
            fetch()
            return
        except _connection_errors() as error:
            bytes_now = count_received()
            vain_tries = vain_tries + 1 if bytes_now <= bytes_before else 0
            is_of_disk = isinstance(error, OSError) and error.errno is not None  # the client's own have no number
            if is_of_disk or vain_tries == _MAX_VAIN_TRIES or (vain_tries and isinstance(error, HfHubHTTPError)):
                raise
            bytes_before = bytes_now
            time.sleep(2.0)


def _connection_errors() -> tuple[type[Exception], ...]:
    """Errors that the client raises, with its HTTP library's; of those only HfHubHTTPError is an OSError."""
    from huggingface_hub.errors import HTTPError  # type: ignore[attr-defined]  # not re-exported

    return (OSError, HTTPError)


@contextmanager
def _client(name: str) -> Iterator[None]:
    """Import the client, set up for sparkd. Raises BlockedError in place of the client's errors."""
    os.environ["HF_HUB_DISABLE_TELEMETRY"] = "1"
    with without("click", "rich"):  # its HTTP library imports a command line where these are found
        import huggingface_hub.file_download  # now: the folder's owner, who downloads, may not read root's Python
        import huggingface_hub.hf_api

    # Its warnings show whole addresses, which may be signed, and its own handler prints text as it is.
    logger = logging.getLogger(huggingface_hub.__name__)
    logger.setLevel(logging.ERROR)
    logger.handlers.clear()
    try:
        yield
    except SharedFolderError:
        raise
    except _connection_errors() + (ValueError, RuntimeError, ImportError, MemoryError) as error:  # noqa: RUF005
        raise explain_error(error, name) from None


@contextmanager
def _limit_memory() -> Iterator[None]:
    """Meanwhile let this process take at most _ANSWER_BYTES more. Raises MemoryError."""
    soft, hard = limits = resource.getrlimit(resource.RLIMIT_AS)
    used_bytes = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    most_bytes = used_bytes + _ANSWER_BYTES
    resource.setrlimit(
        resource.RLIMIT_AS, (most_bytes if soft == resource.RLIM_INFINITY else min(soft, most_bytes), hard)
    )
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, limits)


def explain_error(error: Exception, name: str) -> BlockedError:
    """What an error of the client means for the model of that name, with its remedy."""
    from huggingface_hub import errors
    from huggingface_hub.constants import ENDPOINT

    token = "give a token that may read it: --token-file FILE"  # noqa: S105
    match error:
        case errors.GatedRepoError():
            hint = f"accept them at {ENDPOINT}/{name}, and {token}"
            return BlockedError(f"{name} is for those who have accepted its terms", hint)
        case errors.RevisionNotFoundError():
            return BlockedError(f"{name} has no such revision", "--revision takes a branch, a tag or a commit")
        case errors.RepositoryNotFoundError():
            return BlockedError(f"{ENDPOINT} has no model {name}, or shows it to few", f"correct the name, or {token}")
        case errors.OfflineModeIsEnabled():
            return BlockedError("HF_HUB_OFFLINE says to stay offline, so nothing is downloaded", "unset HF_HUB_OFFLINE")
        case errors.HfHubHTTPError():
            return BlockedError(f"{ENDPOINT} answers HTTP {error.response.status_code} for {name}", _AGAIN)
        case OSError(errno=int()):
            hint = f"{'make room: df -h;' if error.errno == errno.ENOSPC else 'fix that,'} then {_AGAIN}"
            hint = "with sudo, or into a folder of your own: --to FOLDER" if error.errno == errno.EACCES else hint
            return BlockedError(f"{sanitize(str(error.filename or 'a file'))}: {error.strerror}", hint)
        case MemoryError():
            hint = f"no list of files is so large; another mirror: sudo env HF_ENDPOINT=URL sparkd model pull {name}"
            return BlockedError(f"{ENDPOINT} answers with more than {_ANSWER_BYTES >> 20} MiB for {name}", hint)
        case ValueError() | RuntimeError() | ImportError():
            return BlockedError(f"the hub's client can't download {name}: {sanitize(str(error))}")
        case _:
            command = f"sudo env HTTPS_PROXY=URL HF_ENDPOINT=URL sparkd model pull {name}"  # sudo keeps neither
            hint = f"is this node online? Then {_AGAIN}. By a proxy, from a mirror, or both: {command}"
            return BlockedError(f"{ENDPOINT} can't be reached, or broke off: {type(error).__name__}", hint)


def _read_size(path: Path) -> int | None:
    try:
        return path.stat().st_size
    except OSError:
        return None
