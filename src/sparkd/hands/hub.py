"""Models from the hub, by its own client. The only home of huggingface_hub."""

from __future__ import annotations

import logging
import os
import re
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path

from msgspec import Struct

from sparkd.errors import BlockedError
from sparkd.host.harmless import harmless
from sparkd.host.model_folder import DOWNLOADS

BY_HTTP = {"HF_HUB_DISABLE_XET": "1", "HF_HUB_ENABLE_HF_TRANSFER": "0", "HF_HUB_DISABLE_TELEMETRY": "1"}
"""Whatever else is installed: the other ways begin a file anew that was cut off."""
ANSWER_SECONDS = 60.0
PAUSE_SECONDS = 2.0
MOST_VAIN = 3
"""Tries that bring nothing. The client itself tries again only where no answer has begun."""
AGAIN = "run it again: it goes on where it ended"


class Repo(Struct, frozen=True):
    name: str
    commit: str
    """What the revision stood for when the hub was asked: a download that is taken up again gets the same files."""
    sizes: tuple[tuple[str, int], ...]
    """Of its files, by path."""
    contents: frozenset[str] = frozenset()
    """What the hub calls the content of each, and its client what it has of it; empty where the hub does not say."""

    def missing(self, folder: Path) -> tuple[str, ...]:
        """Files that are not in a folder yet, in full size."""
        return tuple(path for path, size in self.sizes if _size(folder / path) != size)

    def missing_bytes(self, folder: Path) -> int:
        """What is still to come, less what is there of files that were cut off: of these, not of older ones."""
        sizes = dict(self.sizes)
        cut = (folder / DOWNLOADS).rglob("*.incomplete")
        begun = sum(_size(path) or 0 for path in cut if not self.contents or path.name.split(".")[-2] in self.contents)
        return max(0, sum(sizes[path] for path in self.missing(folder)) - begun)


def ask(name: str, revision: str | None, token: str | None, exclude: tuple[str, ...] = ()) -> Repo:
    """What the hub has under a name, without what matches a pattern of `exclude`. Raises BlockedError."""
    with _client(name):
        from huggingface_hub import HfApi

        info = HfApi(token=token).model_info(name, revision=revision, files_metadata=True, timeout=ANSWER_SECONDS)
        siblings = info.siblings or ()
        sizes = {one.rfilename: one.size or 0 for one in siblings}
        contents = frozenset(said for one in siblings if (said := one.lfs.sha256 if one.lfs else one.blob_id))
        wanted = sorted(path for path in sizes if not any(fnmatchcase(path, pattern) for pattern in exclude))
    for path in wanted:
        if path.startswith("/") or ".." in path.split("/"):
            raise BlockedError(f"{name} has a file {harmless(path)}, which is outside of the model's folder")
    return Repo(name, str(info.sha), tuple((path, sizes[path]) for path in wanted), contents)


def download(repo: Repo, folder: Path, token: str | None) -> None:
    """Bring what is missing into a folder; of a file that was cut off, the rest. Raises BlockedError.

    Its progress is the client's own, on a terminal alone.
    """
    # By name, and by no pattern: brackets would be a set of characters.
    wanted = [re.sub(r"([*?[])", r"[\1]", path) for path, _ in repo.sizes]
    with _client(repo.name):
        from huggingface_hub import snapshot_download
        from huggingface_hub.utils.tqdm import disable_progress_bars

        if not sys.stderr.isatty():
            disable_progress_bars()
        fetch = partial(snapshot_download, repo.name, revision=repo.commit, local_dir=folder, token=token)

        def bring() -> None:
            fetch(allow_patterns=wanted)
            # Of a hub that is away the client says nothing where the folder has something.
            if any(not os.path.lexists(folder / path) for path, _ in repo.sizes):
                raise ConnectionError

        _to_the_end(bring, lambda: repo.missing_bytes(folder))
    if missing := repo.missing(folder):
        raise BlockedError(
            f"{folder}: {harmless(missing[0])} is not as large as the hub has it",
            "run it again; where that does not help, move the file away before",
        )


def _to_the_end(fetch: Callable[[], object], left: Callable[[], int]) -> None:
    """Through every connection that breaks off, as long as some bytes come between two breaks.

    A refusal too is tried again after some bytes: addresses of files are good for an hour alone.
    """
    least, vain = left(), 0
    while vain < MOST_VAIN:
        try:
            fetch()
            return
        except OSError as error:
            now = left()
            vain = vain + 1 if now >= least else 0
            if error.errno is not None or vain == MOST_VAIN or (vain and _refused(error)):
                raise
            least = now
            time.sleep(PAUSE_SECONDS)


@contextmanager
def _client(name: str) -> Iterator[None]:
    """The client, made ready before it is imported; what it raises becomes one line."""
    os.environ.update(BY_HTTP)
    import huggingface_hub

    # Its warnings tell whole addresses, which may be signed, and its own handler prints text as it is.
    logger = logging.getLogger(huggingface_hub.__name__)
    logger.setLevel(logging.ERROR)
    logger.handlers.clear()
    try:
        yield
    except (OSError, ValueError, RuntimeError) as error:
        raise _told(error, name) from None


def _refused(error: BaseException | None) -> bool:
    """Whether the hub has answered; the client calls also those errors of HTTP which are none."""
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    if isinstance(error, LocalEntryNotFoundError):
        return _refused(error.__cause__)
    return isinstance(error, HfHubHTTPError) and error.response is not None


def _told(error: BaseException, name: str) -> BlockedError:
    from huggingface_hub import errors
    from huggingface_hub.constants import ENDPOINT

    if isinstance(error, errors.LocalEntryNotFoundError):
        return _told(error.__cause__ or ConnectionError(), name)
    token = "give a token that may read it: --token-file FILE"  # noqa: S105
    match error:
        case errors.GatedRepoError():
            return BlockedError(
                f"{name} is for those who have accepted its terms", f"accept them at {ENDPOINT}/{name}, and {token}"
            )
        case errors.RevisionNotFoundError():
            return BlockedError(f"{name} has no such revision", "--revision takes a branch, a tag or a commit")
        case errors.RepositoryNotFoundError():
            return BlockedError(f"{ENDPOINT} has no model {name}, or shows it to few", f"mend the name, or {token}")
        case errors.OfflineModeIsEnabled():
            return BlockedError("HF_HUB_OFFLINE says to stay offline, so nothing is downloaded", "unset HF_HUB_OFFLINE")
        case errors.HfHubHTTPError() if error.response is not None:
            return BlockedError(f"{ENDPOINT} answers HTTP {error.response.status_code} for {name}", AGAIN)
        case OSError(errno=int()):
            return BlockedError(f"{error.filename or 'a file'}: {error.strerror}", f"mend that, then {AGAIN}")
        case OSError():
            return BlockedError(
                f"{ENDPOINT} can't be reached, or broke off: {type(error).__name__}",
                f"is this node online? HTTPS_PROXY names a proxy, HF_ENDPOINT a mirror. Then {AGAIN}",
            )
        case _:
            return BlockedError(f"the hub's client can't download {name}: {harmless(str(error))}")


def _size(path: Path) -> int | None:
    try:
        return path.stat().st_size
    except OSError:
        return None
